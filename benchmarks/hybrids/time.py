"""Milliseconds of a tree pass over n nodes, and of the model's own pass over n tokens behind its cached state.

Both are whole passes of the same model, in turn, n by n. Commits and what restores the state are not counted.
"""

from __future__ import annotations

import time
from statistics import median
from typing import Any

import torch
from rich.progress import track
from transformers import PreTrainedModel

from benchmarks.hybrids.models import KINDS, build, own_passes
from treespec.hf.recurrent.scorer import StateScorer

NUM_NODES = (1, 2, 4, 8, 16, 32, 64)
CONTEXT = 64


@torch.inference_mode()
def times(model: PreTrainedModel, num_rounds: int, seed: int) -> dict[str, Any]:
    """By n the medians, and the median of the paired ratios; parents are n // 2, a tree of width two."""
    generator = torch.Generator().manual_seed(seed)
    prompt = torch.randint(3, 512, (1, CONTEXT), generator=generator)
    scorer, own = StateScorer(model), own_passes(model, prompt)
    scorer.prefill(prompt, torch.ones_like(prompt, dtype=torch.bool))
    found: dict[str, Any] = {}
    for size in NUM_NODES:
        tokens = torch.randint(3, 512, (1, size), generator=generator)
        parents = torch.tensor([[-1, *((node - 1) // 2 for node in range(1, size))]])
        pairs = []
        for _ in range(num_rounds + 1):
            start = time.perf_counter()
            scorer.extend(tokens, parents)
            between = time.perf_counter()
            own(tokens)
            pairs.append((between - start, time.perf_counter() - between))
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
    return {kind: times(build(kind, size, num_layers, seed), num_rounds, seed) for kind in track(KINDS)}
