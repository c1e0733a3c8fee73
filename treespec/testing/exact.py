"""The law that a rule really emits, summed over all its runs.

Axis letters: V vocabulary, D depth. An array is numpy float64, or object with Fraction entries.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np

from treespec.errors import ConfigError
from treespec.protocols import Chooser, TargetLaw, VerifiableTree
from treespec.testing.enumeration import enumerate_traces
from treespec.testing.laws import ConditionalLaw
from treespec.testing.trees import Context, ToyTree
from treespec.tree import Verdict


class WalkingRule(Protocol):
    """What the oracle asks of a rule."""

    def walk(self, tree: VerifiableTree, target_law: TargetLaw, chooser: Chooser) -> Verdict: ...


class ExactLaw(NamedTuple):
    """What a rule emits, exactly: `law` and `target_law` are joint laws of D + 1 tokens, one axis of V entries each."""

    law: np.ndarray
    target_law: np.ndarray
    total_weight: Any
    mean_accepted: Any
    num_traces: int

    @property
    def error(self) -> Any:
        """The largest absolute difference of an entry."""
        return abs(self.law - self.target_law).max()

    @property
    def total_variation(self) -> Any:
        return abs(self.law - self.target_law).sum() / 2


def exact_law(
    rule: WalkingRule, drafter: Callable[[Chooser], ToyTree], target: ConditionalLaw, depth: int | None = None
) -> ExactLaw:
    """The joint law of `depth + 1` tokens that a rule emits on a drafter's trees, by enumeration.

    Args:
        rule: the rule.
        drafter: draws a tree by its chooser only, e.g. a `ToyDrafter`.
        target: the target's conditional law.
        depth: at least the depth of every tree; None: that depth.

    Raises:
        ConfigError: a tree is deeper than `depth`.
        AssertionError: the rule does what no chooser or tree allows: a coin used twice, a probability above one, a
            path that is none.
    """
    drafted = list(enumerate_traces(drafter))
    max_depth = max(len(context) for _, tree in drafted for context in tree.contexts)
    depth = max_depth if depth is None else depth
    if depth < max_depth:
        raise ConfigError(f"depth must be at least that of the trees, {max_depth}, got {depth}")
    emitted: dict[Context, Any] = {}
    accepted: Any = 0
    num_traces = 0
    for tree_weight, tree in drafted:
        laws = [target(context) for context in tree.contexts]
        for weight, verdict in enumerate_traces(lambda c, tree=tree, laws=laws: rule.walk(tree, laws.__getitem__, c)):
            tokens = (*tree.contexts[_last_node(tree, verdict)], int(verdict.next_token))
            emitted[tokens] = emitted.get(tokens, 0) + tree_weight * weight
            accepted = accepted + tree_weight * weight * verdict.num_accepted
            num_traces += 1
    law = sum(weight * _extended(tokens, target, depth + 1) for tokens, weight in emitted.items())
    return ExactLaw(np.asarray(law), _extended((), target, depth + 1), sum(emitted.values()), accepted, num_traces)


def assert_lossless(
    rule: WalkingRule,
    drafter: Callable[[Chooser], ToyTree],
    target: ConditionalLaw,
    depth: int | None = None,
    tolerance: float = 1e-12,
) -> ExactLaw:
    """Assert that a rule emits the target's law: exactly with Fractions, within `tolerance` with floats.

    Arguments as for `exact_law`.

    Raises:
        AssertionError: the law is another one; says by how much.
        ConfigError: see `exact_law`.
    """
    result = exact_law(rule, drafter, target, depth)
    bound = 0 if result.target_law.dtype == object else tolerance
    assert abs(result.total_weight - 1) <= bound, f"the traces' weights sum to {result.total_weight}"
    assert result.error <= bound, (
        f"{rule} is off by {result.error} (total variation {float(result.total_variation):.3g})"
    )
    return result


def _last_node(tree: ToyTree, verdict: Verdict) -> int:
    path = verdict.path
    assert path[0] == 0, f"the path {path} does not start at the root"
    assert all(tree.parents[child] == parent for parent, child in pairwise(path)), f"no path: {path}"
    assert verdict.is_bonus == (not tree.children(path[-1])), "a bonus token follows a leaf, a residual token does not"
    return path[-1]


def _extended(tokens: Context, target: ConditionalLaw, length: int) -> np.ndarray:
    """The joint law of `length` tokens that start with `tokens` and go on as the target does: [V] * length."""
    vocab_size = len(target(()))
    joint = np.zeros((vocab_size,) * length, dtype=target(()).dtype)
    joint[tokens] = _continuation(tokens, target, length - len(tokens))
    return joint


def _continuation(context: Context, target: ConditionalLaw, length: int) -> Any:
    if length == 0:
        return 1
    law = target(context)
    rows = [prob * np.asarray(_continuation((*context, token), target, length - 1)) for token, prob in enumerate(law)]
    return np.array(rows, dtype=law.dtype)
