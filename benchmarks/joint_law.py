"""Does sampling keep the target's law? A G-test of the joint law of three tokens through the whole engine.

A real tiny target and draft model with a vocabulary of 8 decode batches of 2,000 rows from one prompt; the 512 possible
continuations are counted and compared with their exact probabilities, which plain uncached passes and transformers'
own processors give. Every rule is tried on every family of trees that it admits, and every planted bug must be found.

    python benchmarks/joint_law.py [--batches 100] [--rows 2000]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import chi2
from transformers import LlamaConfig, LlamaForCausalLM, LogitsProcessorList
from transformers.generation import logits_process as library

from treespec import BestFirst, Chain, KAry, TreeSpeculation
from treespec.protocols import TreePolicy, VerificationRule

VOCAB_SIZE, NUM_TOKENS = 8, 3
PROMPT = [1, 5, 2, 7]
PLAIN = {"top_k": 0}
WARPED = {"top_k": 0, "temperature": 0.8, "top_p": 0.9, "repetition_penalty": 1.4}


@dataclass(frozen=True)
class Case:
    """One rule on one family of trees under one set of processors."""

    rule: str | VerificationRule
    policy: TreePolicy
    family: str
    options: dict[str, Any]

    @property
    def name(self) -> str:
        rule = self.rule if isinstance(self.rule, str) else self.rule.name
        return f"{rule} / {self.family} / {'warped' if 'top_p' in self.options else 'plain'}"


def tiny_models() -> tuple[LlamaForCausalLM, LlamaForCausalLM]:
    """A target and a draft that agrees with it in part."""
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        initializer_range=0.4,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    torch.manual_seed(0)
    target, draft = LlamaForCausalLM(config).eval(), LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for mine, theirs in zip(draft.parameters(), target.parameters(), strict=True):
            mine.mul_(0.4).add_(0.7 * theirs)
    return target, draft


@torch.no_grad()
def exact_law(model: LlamaForCausalLM, options: dict[str, Any]) -> np.ndarray:
    """The joint law of the next three tokens, float64 [8, 8, 8], from uncached passes over every prefix."""
    processors = LogitsProcessorList()
    if "repetition_penalty" in options:
        processors.append(library.RepetitionPenaltyLogitsProcessor(options["repetition_penalty"]))
        processors.append(library.TemperatureLogitsWarper(options["temperature"]))
        processors.append(library.TopPLogitsWarper(options["top_p"]))
    prefixes, weights = torch.tensor([PROMPT]), torch.ones(1, dtype=torch.float64)
    for _ in range(NUM_TOKENS):
        scores = processors(prefixes, model(prefixes).logits[:, -1].float())
        weights = (weights.unsqueeze(1) * scores.softmax(-1).double()).flatten()
        fresh = torch.arange(VOCAB_SIZE).repeat(len(prefixes), 1).view(-1, 1)
        prefixes = torch.cat([prefixes.repeat_interleave(VOCAB_SIZE, 0), fresh], dim=1)
    return (weights / weights.sum()).numpy()


def count(case: Case, models: tuple[LlamaForCausalLM, LlamaForCausalLM], num_batches: int, num_rows: int) -> np.ndarray:
    """How often each of the 512 continuations came, int64 [512]."""
    target, draft = models
    counts = np.zeros(VOCAB_SIZE**NUM_TOKENS, dtype=np.int64)
    prompts = torch.tensor([PROMPT]).repeat(num_rows, 1)
    for batch in range(num_batches):
        speculation = TreeSpeculation(draft, tree=case.policy, verification=case.rule, seed=batch)
        out = target.generate(
            prompts, max_new_tokens=NUM_TOKENS, do_sample=True, custom_generate=speculation, **case.options
        )
        new = out[:, len(PROMPT) :].numpy()
        cells = new @ (VOCAB_SIZE ** np.arange(NUM_TOKENS - 1, -1, -1))
        counts += np.bincount(cells, minlength=len(counts))
    return counts


def g_test(counts: np.ndarray, law: np.ndarray) -> float:
    """p-value of a G-test; cells that expect fewer than five are pooled; an impossible cell that came gives zero."""
    if counts[law == 0].any():
        return 0.0
    expected = law * counts.sum()
    is_small = expected < 5
    observed = np.append(counts[~is_small], counts[is_small].sum()).astype(float)
    wanted = np.append(expected[~is_small], expected[is_small].sum())
    observed, wanted = observed[wanted > 0], wanted[wanted > 0]
    terms = np.where(observed > 0, observed * np.log(np.maximum(observed, 1) / wanted), 0.0)
    return float(chi2.sf(2 * terms.sum(), len(wanted) - 1))


def sampled(children: str) -> TreePolicy:
    return KAry((2, 2), children=children)


def cases() -> list[Case]:
    """Every rule on the families it admits, with and without processors."""
    trees: dict[str, TreePolicy] = {
        "chain": Chain(2),
        **{family: sampled(family) for family in ("iid", "without_replacement", "selected", "mixed")},
        "best-first sampled": BestFirst(6),
    }
    pairs = [("token", "chain"), ("block", "chain"), ("target_walk", "selected")]
    pairs += [(rule, family) for rule in ("recursive", "traversal") for family in trees]
    return [Case(rule, trees[family], family, options) for rule, family in pairs for options in (PLAIN, WARPED)]


def run(listed: list[Case], num_batches: int, num_rows: int, report: Callable[[str], None] = print) -> list[dict]:
    """G-test every case; one dictionary each."""
    models, results = tiny_models(), []
    for case in listed:
        start = time.perf_counter()
        law = exact_law(models[0], case.options)
        counts = count(case, models, num_batches, num_rows)
        distance = float(np.abs(counts / counts.sum() - law).sum() / 2)
        p_value = g_test(counts, law)
        results.append({"case": case.name, "samples": int(counts.sum()), "p": p_value, "total_variation": distance})
        report(f"{case.name:45s} p = {p_value:.4f}  TV = {distance:.4f}  {time.perf_counter() - start:.0f} s")
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "joint_law.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results = run(cases(), arguments.batches, arguments.rows)
    arguments.out.parent.mkdir(exist_ok=True)
    arguments.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
