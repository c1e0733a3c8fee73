"""Depth-first trees as lists of parents, and where they are in a step's flat batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from treespec.vllm.segments import StepTrees


def path_to(parents: list[int], node: int) -> list[int]:
    path = [node]
    while parents[path[-1]] >= 0:
        path.append(parents[path[-1]])
    return path[::-1]


def step_trees(trees: Sequence[list[int]], positions: Sequence[int], chunks: Sequence[int] | None = None) -> StepTrees:
    """Trees of requests with roots at `positions`, behind chunks of prompts of so many tokens."""
    before, sizes = np.array(chunks or [0] * len(trees)), np.array(list(map(len, trees)))
    padded = [[*tree, *[-2] * (max(sizes) - len(tree))] for tree in trees]
    depths = [
        [len(path_to(tree, node)) - 1 if parent > -2 else 0 for node, parent in enumerate(tree)] for tree in padded
    ]
    firsts = np.cumsum(before + sizes) - before - sizes
    return StepTrees(np.array(padded), np.array(depths), firsts, firsts + before, np.array(positions), sizes - 1)
