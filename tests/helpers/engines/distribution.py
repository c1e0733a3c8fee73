"""Does sampling with trees in vLLM keep the model's distribution? G-tests of the joint distribution of four tokens.

The model is a tiny random one with five tokens, so that all 625 outputs have known probabilities: those of uncached
passes in transformers, under vLLM's order of processors. Every lossless rule is tried at T = 1 and with temperature,
filters, penalties and logit bias, on selected children, on children drawn without replacement and independently, on
trees and on chains; then every planted mistake, which must be found.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from helpers.engines.drafters import VOCAB
from helpers.engines.engine import run_jobs
from helpers.engines.planted_bugs import PLANTED_BUGS, STRUCTURAL

from treespec.testing import enumerate_continuations, g_test, uncached

PROMPT, NUM_NEW = [1, 3, 0, 2, 4, 1], 4
PARAMS: dict[str, dict[str, Any]] = {
    "T = 1": {},
    "filtered": {"temperature": 0.7, "top_p": 0.9, "presence_penalty": 0.8},
    "mixed": {"temperature": 1.3, "min_p": 0.1, "logit_bias": {"2": 0.7}, "top_k": 4},
}
BIGRAM, INDEPENDENT, LIAR = (f"helpers.engines.drafters:{name}" for name in ("Bigram", "Independent", "Liar"))
CHAIN = [[0], [0, 0], [0, 0, 0]]
PAIRS = [[0], [1], [0, 0], [0, 1], [1, 0], [1, 1]]


@dataclass(frozen=True)
class Case:
    """One engine: its speculation, the names of the sampling parameters, and the planted mistake if there is one.

    `is_timed`: measured times decide how often it drafts.
    """

    name: str
    speculation: dict[str, Any]
    params: tuple[str, ...] = ("T = 1", "filtered")
    bug: str | None = None
    rule: str = ""
    is_timed: bool = False


CASES = [
    Case("selected children", {"tree": 8}, tuple(PARAMS), rule="target_walk"),
    Case("drawn children", {"drafter": BIGRAM, "tree": 8, "verification": "recursive"}, rule="recursive"),
    Case("drawn children", {"drafter": BIGRAM, "tree": 8}, tuple(PARAMS), rule="traversal"),
    Case("drawn children, auto", {"drafter": BIGRAM}, rule="traversal", is_timed=True),
    Case("drawn chains", {"drafter": BIGRAM, "verification": "token", "tree": CHAIN}, rule="token"),
    Case("drawn chains", {"drafter": BIGRAM, "verification": "block", "tree": CHAIN}, rule="block"),
    *(
        Case("independent pairs", {"drafter": INDEPENDENT, "verification": rule, "tree": PAIRS}, rule=rule)
        for rule in ("k_seq", "optimal_transport", "transport_traversal")
    ),
]
BUGS = [
    Case(
        "drawn children",
        {"drafter": LIAR, "tree": 8},
        ("T = 1",),
        "draft probabilities are not those drawn from",
        "traversal",
    ),
    *(Case("selected children", {"tree": 8}, ("filtered",), bug) for bug in PLANTED_BUGS if bug not in STRUCTURAL),
]


def run_case(folder: Path, model: Any, case: Case, number: int) -> list[dict[str, Any]]:
    """By the case's parameters the G-test's p, and the accepted draft tokens."""
    params = {name: PARAMS[name] for name in case.params}
    found = sample(folder / "tiny", case.speculation, params, number, case.bug if case.bug in PLANTED_BUGS else None)
    return [
        {
            "p": g_test(Counter(tuple(one["ids"]) for one in found[name]), exact(model, values)),
            "accepted": int(found["counts"][name]["num_accepted_tokens"]),
        }
        for name, values in params.items()
    ]


def sample(
    folder: Path, speculation: dict[str, Any], params: dict[str, dict[str, Any]], number: int, bug: str | None = None,
    **settings: Any,
) -> dict[str, Any]:  # fmt: skip
    """Answers to `number` requests with the same prompt, by the name of their parameters; see `run_jobs`."""
    engine = {
        "model": str(folder),
        "skip_tokenizer_init": True,
        "max_model_len": 64,
        "max_num_seqs": 128,
        "kv_cache_memory_bytes": 64 << 20,
        "speculative_config": {"method": "treespec", "num_speculative_tokens": 7, **speculation},
        **settings,
    }
    base = {"temperature": 1.0, "max_tokens": NUM_NEW, "ignore_eos": True, "detokenize": False}
    jobs = {name: {"prompts": [PROMPT] * number, "params": {**base, **p}} for name, p in params.items()}
    return run_jobs(engine, jobs, planted=bug, seconds=1800)


def exact(model: Any, params: dict[str, Any]) -> dict[tuple[int, ...], float]:
    """The probability of every output that can come, under vLLM's order of processors."""

    def process(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        for token, bias in params.get("logit_bias", {}).items():
            scores[:, int(token)] += bias
        for row, output in enumerate(ids[:, len(PROMPT) :].tolist()):
            scores[row, list(set(output))] -= params.get("presence_penalty", 0.0)
        return filtered((scores.double() / params.get("temperature", 1.0)).softmax(-1), params).log()

    return enumerate_continuations(uncached(model, torch.tensor(PROMPT), process), NUM_NEW).joint


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
