"""Milliseconds of a tree pass over n nodes, and of the model's own pass over n tokens behind its cached state.

Both are whole passes of the same model, in turn, n by n. Commits and what restores the state are not counted. `chunks`
compares with own passes whose chunks have n tokens: some models pad to more, which makes theirs slow.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from functools import partial
from statistics import median
from typing import Any

import torch
from rich.progress import track
from transformers import PreTrainedModel

from benchmarks.hybrids.models import KINDS, PADDED, by_kind, chunks_of, own_passes
from treespec.hf.recurrent.scorer import StateScorer

NUM_NODES = (1, 2, 4, 8, 16, 32, 64)
CONTEXT = 64


@torch.inference_mode()
def times(model: PreTrainedModel, num_rounds: int, seed: int, has_chunks_of_n: bool = False) -> dict[str, Any]:
    """By n the medians, and the median of the paired ratios; parents are n // 2, a tree of width two."""
    generator = torch.Generator().manual_seed(seed)
    prompt = torch.randint(3, 512, (1, CONTEXT), generator=generator)
    scorer, own = StateScorer(model), own_passes(model, prompt)
    scorer.prefill(prompt[:, :-1], torch.ones_like(prompt[:, :-1], dtype=torch.bool))
    # Behind a prompt alone a pass over one node would be a tree's, not the model's own step.
    scorer.extend(prompt[:, -1:], torch.tensor([[-1]]))
    scorer.commit([(0,)])
    found: dict[str, Any] = {}
    for size in NUM_NODES:
        tokens = torch.randint(3, 512, (1, size), generator=generator)
        parents = torch.tensor([[-1, *((node - 1) // 2 for node in range(1, size))]])
        pairs = []
        for _ in range(num_rounds + 1):
            start = time.perf_counter()
            scorer.extend(tokens, parents)
            between = time.perf_counter()
            with chunks_of(model, size) if has_chunks_of_n else nullcontext():
                begun = time.perf_counter()
                own(tokens)
                pairs.append((between - start, time.perf_counter() - begun))
            scorer.commit([()])
        tree, chunk = zip(*pairs[1:], strict=True)
        found[str(size)] = {
            "tree_ms": 1e3 * median(tree),
            "own_ms": 1e3 * median(chunk),
            "ratio": median(a / b for a, b in pairs[1:]),
        }
    return found


def measure(size: int, num_layers: int, num_rounds: int, seed: int) -> dict[str, Any]:
    """By kind and number of nodes."""
    return by_kind(partial(times, num_rounds=num_rounds, seed=seed), track(KINDS), size, num_layers, seed)


def measure_chunks(size: int, num_layers: int, num_rounds: int, seed: int) -> dict[str, Any]:
    """The same for kinds whose own passes pad, with chunks of n tokens there."""
    run = partial(times, num_rounds=num_rounds, seed=seed, has_chunks_of_n=True)
    return by_kind(run, track(PADDED), size, num_layers, seed)
