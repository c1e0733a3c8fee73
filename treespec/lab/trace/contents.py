"""The record of one verified step: trees, probabilities at their nodes, who proposed them."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from treespec.engine.target_probs import TargetProbs
from treespec.tree import TokenTree, Verdict
from treespec.tree.transfer import download
from treespec.verification.walks import residual_weights

SMALLEST = 1e-30
"""The least divisor of a mass, so that an empty residual stays zero."""


def tree_records(
    probs: TargetProbs, verdicts: Sequence[Verdict], uniforms: tuple[Tensor, Tensor] | None, drafter: Any
) -> Iterator[dict[str, Any]]:
    """The fields of `TracedStep` that are known before the step is committed, row by row."""
    trees = probs.trees
    values = [None] * trees.num_rows if trees.values is None else trees.values.tolist()
    chance = [(None, None)] * trees.num_rows
    if uniforms is not None:
        chance = list(zip(*(numbers.tolist() for numbers in uniforms), strict=True))
    for row, (tree, verdict, (coins, draws)) in enumerate(zip(trees.trees, verdicts, chance, strict=True)):
        size = tree.num_nodes
        yield {
            "tokens": tree.token_list,
            "parents": tree.parent_list,
            "draft_probs": _draft_probs(tree, values[row]),
            **_target_record(probs, row, verdict),
            "drafters": _proposers(drafter, row, tree),
            "coins": coins and coins[:size],
            "draws": draws and draws[:size],
            "draft_index": None if tree.draft_index is None else tree.draft_index_list,
            "is_without_replacement": None if tree.draft_index is None else tree.is_without_replacement_list,
            "is_width_fixed": tree.is_width_fixed,
            "path": list(verdict.path),
            "next_token": int(verdict.next_token),
            "is_bonus": verdict.is_bonus,
        }


def distributions_of(rows: Sequence[int], probs: TargetProbs) -> dict[str, Tensor]:
    """The target's processed scores after every node, float32 [N, V] by row, and the table of draft distributions.

    Scores of which no distribution can be made are NaN.
    """
    found = {}
    for index, row in enumerate(rows):
        scores = [_scores(probs, index, node) for node in range(probs.trees.trees[index].num_nodes)]
        nothing = torch.full((probs.vocab_size,), math.nan, device=probs.device)
        found[f"scores.{row}"] = torch.stack([nothing if s is None else s for s in scores])
    if probs.trees.draft_probs is not None:
        found["draft_probs"] = probs.trees.draft_probs.contiguous()
    return dict(zip(found, download(*found.values()), strict=True))


def short(number: float) -> float:
    """Six digits."""
    return float(f"{number:.6g}")


def _draft_probs(tree: TokenTree, values: Sequence[float] | None) -> list[float | None]:
    """A sampled child's draft probability; a selected one's quotient of the drafter's path values."""
    found, drawn = dict[int, float](), dict[int, Tensor]()
    for node in range(1, tree.num_nodes):
        probs, parent = tree.draft_probs_of(node), tree.parent_list[node]
        if probs is not None:
            drawn[node] = probs[tree.token(node)]
        elif values is not None and values[parent] > 0:
            found[node] = min(max(values[node] / values[parent], 0.0), 1.0)
    return _by_node(found | _read(drawn), tree)


def _target_record(probs: TargetProbs, row: int, verdict: Verdict) -> dict[str, Any]:
    """Probabilities of the nodes' tokens after their parents; after the path, the next token's and the highest one.

    Read from the device at once.
    """
    tree, last = probs.trees.trees[row], verdict.path[-1]
    read: dict[int | str, Tensor] = {}
    for node, children in enumerate(tree.children_lists):
        if not children and node != last:
            continue
        scores = _scores(probs, row, node)
        if scores is None:
            continue
        after = scores.softmax(-1)
        read |= {child: after[tree.token(child)] for child in children}
        if node == last:
            read |= {"next_prob": after[verdict.next_token], "top_prob": after.amax()}
            if children:
                read["residual_mass"] = _residual_mass(tree, children, after)
    found = _read(read)
    ends = {name: found.get(name) for name in ("next_prob", "top_prob", "residual_mass")}
    return {"target_probs": _by_node(found, tree), **{n: None if v is None else short(v) for n, v in ends.items()}}


def _by_node(found: Mapping[Any, float], tree: TokenTree) -> list[float | None]:
    return [short(found[node]) if node in found else None for node in range(tree.num_nodes)]


def _residual_mass(tree: TokenTree, children: Sequence[int], weights: Tensor) -> Tensor:
    """The mass left of the distribution `weights` [V] when the children are rejected in turn."""
    mass = weights.new_ones(())
    for child in children:
        weights = residual_weights(weights, tree.draft_probs_of(child), tree.token(child))
        total = weights.sum()
        mass, weights = mass * total, weights / total.clamp(min=SMALLEST)
    return mass


def _proposers(drafter: Any, row: int, tree: TokenTree) -> dict[str, list[int]]:
    """Node ids by drafter; nodes that none of a merge's parts proposed are left out."""
    if tree.num_nodes == 1:
        return {}
    if not callable(getattr(drafter, "proposers", None)):
        return {type(drafter).__name__: list(range(1, tree.num_nodes))}
    found: dict[str, set[int]] = {}
    for path in tree.leaf_paths():
        voters = drafter.proposers(row, [tree.token(node) for node in path[1:]])
        for node, names in zip(path[1:], voters, strict=False):
            for name in names:
                found.setdefault(name, set()).add(node)
    return {name: sorted(nodes) for name, nodes in found.items()}


def _scores(probs: TargetProbs, row: int, node: int) -> Tensor | None:
    """Processed scores [V]; None where no distribution can be made of them, at a node that no rule may have visited."""
    return probs.scores(row, node) if probs.has_probs(row, node) else None


def _read(scalars: dict[Any, Tensor]) -> dict[Any, float]:
    """Numbers on any device, by one wait."""
    if not scalars:
        return {}
    stacked = torch.stack([scalar.double() for scalar in scalars.values()])
    return dict(zip(scalars, download(stacked)[0].tolist(), strict=True))
