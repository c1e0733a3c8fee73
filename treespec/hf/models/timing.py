"""How the time of a pass is taken."""

from __future__ import annotations

import time

import torch

from treespec.hf.models.make_scorer import AnyScorer
from treespec.hf.models.static_scorer import StaticScorer
from treespec.protocols import Capability
from treespec.tree import ROOT_PARENT


def time_pass(scorer: AnyScorer | StaticScorer, num_nodes: int) -> float:
    """Seconds of a pass of one row over a tree of this many nodes, none of which stays in the cache."""
    is_tree = scorer.capability == Capability.TREE
    parents = [[ROOT_PARENT, *((node - 1) // 2 if is_tree else node - 1 for node in range(1, num_nodes))]]
    tokens = torch.ones(1, num_nodes, dtype=torch.int64, device="cpu")  # On the host, as trees are.
    start = time.perf_counter()
    logits = scorer.extend(tokens, torch.tensor(parents, device="cpu")).logits
    logits[0, -1, 0].item()  # Wait for the device.
    seconds = time.perf_counter() - start
    scorer.commit([()])
    return seconds
