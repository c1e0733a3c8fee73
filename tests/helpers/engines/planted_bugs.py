"""Known mistakes of trees in a paged cache, each planted into the engine's process: what the proofs have to find."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from treespec.tree import PADDING_PARENT


def siblings_visible() -> None:
    """Trees are laid out as chains: a node sees its earlier siblings, and stands after them."""
    from treespec.vllm import layout

    plan_segments = layout.plan_segments

    def plan(trees: Any, *args: Any) -> Any:
        columns = np.arange(trees.parents.shape[1])
        parents = np.where(trees.parents == PADDING_PARENT, PADDING_PARENT, columns - 1)
        return plan_segments(replace(trees, parents=parents, depths=np.broadcast_to(columns, parents.shape)), *args)

    layout.plan_segments = plan


def accepted_path_stays_in_scratch_blocks() -> None:
    """The request's own blocks keep the first segment's keys and values."""
    from treespec.vllm.runner import TreeRunner

    TreeRunner._bring_home = lambda self, step: self._set_segments(None)


def root_block_not_copied() -> None:
    """A scratch segment does not see the tokens before the root in the root's block."""
    _change_plan(lambda plan: replace(plan, block_copies=plan.block_copies[:, :0]))


def ancestors_not_written() -> None:
    """A scratch segment does not see its ancestors in the tree."""
    _change_plan(lambda plan: replace(plan, rewrites=plan.rewrites[:, :0]))


def wrong_scratch_block() -> None:
    """Two segments of the batch take each other's scratch blocks."""

    def change(plan: Any) -> Any:
        table = plan.table.copy()
        table[2] = np.roll(table[2], 1)
        return replace(plan, table=table)

    _change_plan(change)


def processors_see_the_roots_text() -> None:
    """Penalties count the request's output without the drafted tokens above a node."""
    from treespec.vllm import scores

    apply = scores._apply

    def without_paths(part, owners, outputs, *others) -> None:
        apply(part, owners, [outputs[owners.index(owner)] for owner in owners], *others)

    scores._apply = without_paths


def filters_left_out() -> None:
    """Distributions are those of temperature 1, without filters."""
    from treespec.vllm import step

    step.target_probs = lambda scores, owners, sampling, min_p: scores.float().softmax(-1)


PLANTED_BUGS: dict[str, Callable[[], None]] = {
    bug.__name__.replace("_", " "): bug
    for bug in (
        siblings_visible,
        accepted_path_stays_in_scratch_blocks,
        root_block_not_copied,
        ancestors_not_written,
        wrong_scratch_block,
        processors_see_the_roots_text,
        filters_left_out,
    )
}

STRUCTURAL = [name for name in PLANTED_BUGS if not name.startswith(("processors", "filters", "root block"))]
"""Bugs that greedy texts have to show: a model of five tokens depends too little on what a node sees for a G-test."""


def plant(name: str) -> None:
    """Make the mistake of this name in this process."""
    PLANTED_BUGS[name]()


def _change_plan(change: Callable[[Any], Any]) -> None:
    from treespec.vllm import layout

    plan_segments = layout.plan_segments

    def plan(*args: Any) -> Any:
        found = plan_segments(*args)
        return change(found) if found.has_segments else found

    layout.plan_segments = plan
