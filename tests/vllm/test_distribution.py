"""Sampling with trees in a real vLLM: G-tests of the joint distribution of four tokens of a tiny random model.

The model has five tokens, so that all 625 outputs have known probabilities. A planted mistake must be found.
"""

from __future__ import annotations

import math
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.vllm_drafters import VOCAB
from helpers.vllm_jobs import run_jobs
from helpers.vllm_models import tiny_llama

pytest.importorskip("vllm.config")
stats = pytest.importorskip("scipy.stats")
pytestmark = pytest.mark.slow

PROMPT, NUM_NEW, NUM_SAMPLES = [1, 3, 0, 2, 4, 1], 4, 4000
FILTERED = {"temperature": 0.7, "top_p": 0.9, "presence_penalty": 0.8}
MIXED = {"temperature": 1.3, "min_p": 0.1, "logit_bias": {"2": 0.7}, "top_k": 4}
BIGRAM, LIAR = "helpers.vllm_drafters:Bigram", "helpers.vllm_drafters:Liar"
CASES: dict[str, tuple[dict[str, Any], dict[str, dict[str, Any]]]] = {
    "selected, target walk": ({"tree": 8}, {"plain": {}, "filtered": FILTERED, "mixed": MIXED}),
    "drawn, traversal": ({"drafter": BIGRAM}, {"plain": {}, "filtered": FILTERED, "mixed": MIXED}),
    "drawn, recursive rejection": ({"drafter": BIGRAM, "verification": "recursive"}, {"plain": {}}),
    "drawn, target walk": ({"drafter": BIGRAM, "verification": "target_walk"}, {"plain": {}}),
    "chains, block verification": (
        {"drafter": BIGRAM, "verification": "block", "tree": [[0], [0, 0], [0, 0, 0]]},
        {"plain": {}},
    ),
    "selected, traversal": ({"tree": 8, "verification": "traversal"}, {"plain": {}}),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("tiny")
    return folder, tiny_llama(folder, VOCAB)


def sample(folder: Path, speculation: dict[str, Any], params: dict[str, dict[str, Any]]) -> dict[str, Any]:
    engine = {
        "model": str(folder),
        "skip_tokenizer_init": True,
        "max_model_len": 64,
        "max_num_seqs": 32,
        "kv_cache_memory_bytes": 64 << 20,
        "speculative_config": {"method": "treespec", "num_speculative_tokens": 7, **speculation},
    }
    base = {"temperature": 1.0, "max_tokens": NUM_NEW, "ignore_eos": True, "detokenize": False}
    prompts = [PROMPT] * NUM_SAMPLES
    return run_jobs(engine, {name: {"prompts": prompts, "params": {**base, **p}} for name, p in params.items()})


def exact(model: Any, params: dict[str, Any]) -> dict[tuple[int, ...], float]:
    """The probability of every output, under vLLM's order of processors."""
    probs: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(NUM_NEW):
        outputs = list(probs)
        with torch.no_grad():
            scores = model(torch.tensor([PROMPT + list(output) for output in outputs])).logits[:, -1].double()
        for row, output in enumerate(outputs):
            for token, bias in params.get("logit_bias", {}).items():
                scores[row, int(token)] += bias
            scores[row, list(set(output))] -= params.get("presence_penalty", 0.0)
        found = filtered((scores / params.get("temperature", 1.0)).softmax(-1), params)
        rows = zip(outputs, found.tolist(), strict=True)
        probs = {(*output, token): probs[output] * p for output, row in rows for token, p in enumerate(row)}
    return probs


def filtered(probs: torch.Tensor, params: dict[str, Any]) -> torch.Tensor:
    """Min-p, top-k, top-p."""
    probs = torch.where(probs < params.get("min_p", 0.0) * probs.amax(-1, keepdim=True), 0.0, probs)
    order = probs.sort(-1)
    is_out = torch.arange(VOCAB) < VOCAB - params.get("top_k", VOCAB)
    kept = torch.where(is_out, 0.0, order.values)
    kept /= kept.sum(-1, keepdim=True)
    kept[kept.cumsum(-1) <= 1 - params.get("top_p", 1.0)] = 0
    probs = kept.gather(-1, order.indices.argsort(-1))
    return probs / probs.sum(-1, keepdim=True)


def p_value(probs: dict[tuple[int, ...], float], outputs: list[list[int]]) -> float:
    """The G-test's; outcomes with fewer than five expected samples are one. Zero if one of probability zero came."""
    counts = Counter(map(tuple, outputs))
    if any(probs[output] == 0 for output in counts):
        return 0.0
    cells = [(counts[cell], len(outputs) * prob) for cell, prob in probs.items()]
    small = [cell for cell in cells if cell[1] < 5]
    pooled = [cell for cell in cells if cell[1] >= 5] + ([tuple(map(sum, zip(*small, strict=True)))] if small else [])
    g = 2 * sum(seen * math.log(seen / expected) for seen, expected in pooled if seen)
    return float(stats.chi2.sf(g, len(pooled) - 1))


@pytest.mark.parametrize("case", CASES)
def test_samples_follow_the_models_distribution(model: tuple[Path, Any], case: str) -> None:
    folder, reference = model
    speculation, params = CASES[case]
    found = sample(folder, speculation, params)
    values = {name: p_value(exact(reference, p), [one["ids"] for one in found[name]]) for name, p in params.items()}
    print(case, values, found["stats"]["mean_acceptance_length"])
    assert found["stats"]["num_accepted_tokens"] > NUM_SAMPLES / 4
    assert min(values.values()) > 1e-4


def test_a_planted_mistake_is_found(model: tuple[Path, Any]) -> None:
    folder, reference = model
    found = sample(folder, {"drafter": LIAR}, {"plain": {}})
    assert p_value(exact(reference, {}), [one["ids"] for one in found["plain"]]) < 1e-12


def test_a_seed_decides_the_output_whatever_is_drafted(model: tuple[Path, Any]) -> None:
    folder, _ = model
    params = {"seeded": {"seed": 7}}
    one, two = (
        sample(folder, {"tree": tree, "drafter": drafter}, params) for tree, drafter in ((8, "merge"), (3, "suffix"))
    )
    outputs = {tuple(result["ids"]) for found in (one, two) for result in found["seeded"]}
    assert len(outputs) == 1


def test_exact_distributions_sum_to_one(model: tuple[Path, Any]) -> None:
    probs = exact(model[1], MIXED)
    assert len(probs) == len(list(product(range(VOCAB), repeat=NUM_NEW)))
    assert sum(probs.values()) == pytest.approx(1)
