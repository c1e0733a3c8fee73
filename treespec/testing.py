"""The exact oracle: a verification rule's output law by enumeration, in float64 or in rational arithmetic.

Sampling cannot see a bias of a thousandth; enumeration sees a bias of any size. A rule and a toy drafter are run once
for every way in which their coins and draws can fall; the weights of all runs, each extended to a fixed length with
the target's own law, add up to the joint law that the rule really emits. With laws of `fractions.Fraction` the result
is exact, so that a lossless rule has error 0 and nothing else.

    target, draft = RandomLaws(3, seed=1, is_exact=True), RandomLaws(3, seed=2, is_exact=True)
    assert_lossless(MyRule(), ToyDrafter(WITHOUT_REPLACEMENT, FixedShape.kary(2, 2), (draft,)), target)

Axis letters: V vocabulary, D depth. An array is numpy float64, or object with Fraction entries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import torch

from treespec.protocols import Chooser, TargetLaw, VerifiableTree
from treespec.tree import (
    IID,
    MIXED,
    POINT_MASS,
    ROOT_PARENT,
    SELECTED,
    WITHOUT_REPLACEMENT,
    Path,
    TokenTree,
    Verdict,
    parse_paths,
)

SEVERAL_DRAFTERS = "several_drafters"
TOY_FAMILIES = (SELECTED, IID, WITHOUT_REPLACEMENT, MIXED, SEVERAL_DRAFTERS)

Context = tuple[int, ...]
"""The tokens after the root."""
ConditionalLaw = Callable[[Context], np.ndarray]
"""Maps a context to the law [V] of the next token. Arrays may be shared: nobody writes to them."""

_Result = TypeVar("_Result")
_SLACK = 1e-9


class EnumeratingChooser:
    """Takes the branches that a script names, and the first one where the script ends; multiplies their weights.

    Each coin and each draw may be used once: a second use would be the same number for a real chooser, and no
    independent branch.
    """

    def __init__(self, script: Sequence[int] = ()) -> None:
        self._script = script
        self._coins: set[int] = set()
        self._draws: set[int] = set()
        self.weight: Any = 1
        self.taken: list[int] = []
        self.num_options: list[int] = []

    def flip(self, node: int, prob: Any) -> bool:
        assert node not in self._coins, f"the coin of node {node} is used twice"
        assert -_SLACK <= prob <= 1 + _SLACK, f"node {node} is accepted with probability {prob}"
        self._coins.add(node)
        return self._branch([(True, prob), (False, 1 - prob)])

    def pick(self, node: int, weights: Any) -> int:
        assert node not in self._draws, f"the draw of node {node} is used twice"
        self._draws.add(node)
        total = weights.sum()
        assert total > 0, f"the weights at node {node} have no mass: {weights}"
        return self._branch([(token, weight / total) for token, weight in enumerate(weights)])

    def _branch(self, outcomes: list[tuple[Any, Any]]) -> Any:
        options = [(outcome, weight) for outcome, weight in outcomes if weight > 0]
        position = len(self.taken)
        choice = self._script[position] if position < len(self._script) else 0
        outcome, weight = options[choice]
        self.weight = self.weight * weight
        self.taken.append(choice)
        self.num_options.append(len(options))
        return outcome


def enumerate_traces(run: Callable[[Chooser], _Result]) -> Iterator[tuple[Any, _Result]]:
    """Every outcome of `run` with its weight; weights add up to one. `run` must be a pure function of its chooser."""
    script: list[int] = []
    while True:
        chooser = EnumeratingChooser(script)
        result = run(chooser)
        yield chooser.weight, result
        script, num_options = chooser.taken, chooser.num_options
        while script and script[-1] + 1 == num_options[len(script) - 1]:
            script.pop()
        if not script:
            return
        script[-1] += 1


@dataclass
class ToyTree:
    """A tree that grows node by node, with laws of any arithmetic: what `VerifiableTree` asks for.

    `base_laws[i]` is the law before earlier siblings were taken out (None: a point mass), `laws[i]` the one after.
    """

    tokens: list[int] = field(default_factory=lambda: [0])
    parents: list[int] = field(default_factory=lambda: [ROOT_PARENT])
    laws: list[np.ndarray | None] = field(default_factory=lambda: [None])
    base_laws: list[np.ndarray | None] = field(default_factory=lambda: [None])
    contexts: list[Context] = field(default_factory=lambda: [()])
    ranks: list[Path] = field(default_factory=lambda: [()])
    child_lists: list[list[int]] = field(default_factory=lambda: [[]])
    is_width_fixed: bool = True

    @property
    def num_nodes(self) -> int:
        return len(self.tokens)

    def children(self, node: int) -> list[int]:
        return self.child_lists[node]

    def token(self, node: int) -> int:
        return self.tokens[node]

    def law(self, node: int) -> np.ndarray | None:
        return self.laws[node]

    def add(self, parent: int, token: int, law: np.ndarray | None, base_law: np.ndarray | None) -> None:
        self.ranks.append((*self.ranks[parent], len(self.child_lists[parent])))
        self.child_lists[parent].append(self.num_nodes)
        self.child_lists.append([])
        self.contexts.append((*self.contexts[parent], token))
        self.tokens.append(token)
        self.parents.append(parent)
        self.laws.append(law)
        self.base_laws.append(base_law)

    def to_token_tree(self) -> TokenTree:
        """The same tree as the engine would store it, laws in float64."""
        rows = {id(base): base for base in self.base_laws if base is not None}
        number = {key: row for row, key in enumerate(rows)}
        index = [POINT_MASS if base is None else number[id(base)] for base in self.base_laws]
        flags = [base is not None and self.laws[i] is not base for i, base in enumerate(self.base_laws)]
        # The first of several draws without replacement has the whole law, and is one of them all the same.
        flags = [flags[i] or any(flags[j] for j in self._group(i)) for i in range(self.num_nodes)]
        laws = torch.tensor(np.array([row.astype(np.float64) for row in rows.values()])) if rows else None
        return TokenTree(
            tokens=torch.tensor(self.tokens),
            parents=torch.tensor(self.parents),
            laws=laws,
            law_index=torch.tensor(index) if rows else None,
            is_without_replacement=torch.tensor(flags) if rows else None,
            is_width_fixed=self.is_width_fixed,
        )

    def _group(self, node: int) -> list[int]:
        """Siblings drawn from the same row as `node`."""
        siblings = self.child_lists[self.parents[node]] if node else []
        return [i for i in siblings if self.base_laws[i] is self.base_laws[node]]


class Shape(Protocol):
    """How a toy tree grows, breadth first. Widths may look at every token drawn so far."""

    @property
    def is_width_fixed(self) -> bool:
        """Whether no node's width depends on its own draws."""
        ...

    def width(self, tree: ToyTree, node: int) -> int:
        """How many children are planned for `node`, asked before its first draw."""
        ...

    def is_done(self, tree: ToyTree, node: int) -> bool:
        """Whether to stop before the planned width, asked before every draw."""
        ...


@dataclass(frozen=True)
class FixedShape:
    """The shape of a list of rank paths, e.g. `[(0,), (1,), (0, 0)]`."""

    paths: tuple[Path, ...]
    is_width_fixed = True

    @classmethod
    def from_paths(cls, paths: str | Sequence[Sequence[int]]) -> FixedShape:
        return cls(tuple(parse_paths(paths)))

    @classmethod
    def kary(cls, *branching: int) -> FixedShape:
        """`branching[d]` children for every node of depth d: `kary(1, 1, 1)` is a chain of three."""
        level: list[Path] = [()]
        paths: list[Path] = []
        for width in branching:
            level = [(*path, rank) for path in level for rank in range(width)]
            paths += level
        return cls(tuple(paths))

    def width(self, tree: ToyTree, node: int) -> int:
        return sum(path[:-1] == tree.ranks[node] for path in self.paths)

    def is_done(self, tree: ToyTree, node: int) -> bool:
        return False


@dataclass(frozen=True)
class AdaptiveDepth:
    """`num_children` per node, but a node is expanded only while the tokens drawn so far, anywhere, sum to even."""

    num_children: int = 2
    max_depth: int = 2
    is_width_fixed = True

    def width(self, tree: ToyTree, node: int) -> int:
        is_open = node == 0 or (len(tree.contexts[node]) < self.max_depth and sum(tree.tokens) % 2 == 0)
        return self.num_children if is_open else 0

    def is_done(self, tree: ToyTree, node: int) -> bool:
        return False


@dataclass(frozen=True)
class AdaptiveWidth:
    """Draws siblings until token 0 came or `max_children` are there: the width depends on the node's own draws."""

    max_children: int = 2
    max_depth: int = 2
    is_width_fixed = False

    def width(self, tree: ToyTree, node: int) -> int:
        return self.max_children if len(tree.contexts[node]) < self.max_depth else 0

    def is_done(self, tree: ToyTree, node: int) -> bool:
        return any(tree.tokens[child] == 0 for child in tree.children(node))


@dataclass(frozen=True)
class ToyDrafter:
    """Drafts a tree of one proposal family, all its chance taken from a chooser.

    Args:
        family: one of TOY_FAMILIES. Selected: the most probable tokens; mixed: one sample of what the selected tokens
            leave, then the selected; several drafters: siblings drawn from `draft_laws` in turn.
        shape: how the tree grows.
        draft_laws: the drafters' conditional laws; all families but the last use the first one only.
    """

    family: str
    shape: Shape
    draft_laws: tuple[ConditionalLaw, ...]

    def __call__(self, chooser: Chooser) -> ToyTree:
        tree = ToyTree(is_width_fixed=self.shape.is_width_fixed)
        node = 0
        while node < tree.num_nodes:
            width = self.shape.width(tree, node)
            for rank in range(width):
                if self.shape.is_done(tree, node) or not self._add_child(tree, node, rank, width, chooser):
                    break
            node += 1
        return tree

    def _add_child(self, tree: ToyTree, node: int, rank: int, width: int, chooser: Chooser) -> bool:
        """Add child number `rank`; False when the family has no further child to offer."""
        base_law, law, selected = self._proposal(tree, node, rank, width)
        if law is not None:
            tree.add(node, chooser.pick(tree.num_nodes, law), law, base_law)
        elif selected is not None:
            tree.add(node, selected, None, None)
        return law is not None or selected is not None

    def _proposal(
        self, tree: ToyTree, node: int, rank: int, width: int
    ) -> tuple[np.ndarray | None, np.ndarray | None, int | None]:
        """The law before and after earlier siblings were taken out, or the selected token."""
        context = tree.contexts[node]
        law = self.draft_laws[0](context)
        by_value = sorted(range(len(law)), key=lambda token: (-law[token], token))
        if self.family == SELECTED:
            return None, None, by_value[rank] if rank < len(law) else None
        if self.family == MIXED:
            rest = _without(law, by_value[: width - 1])
            if rest is not None and rank == 0:
                return rest, rest, None
            # With nothing left to sample from, every child is selected.
            rank = rank if rest is None else rank - 1
            return None, None, by_value[rank] if rank < len(law) else None
        if self.family == WITHOUT_REPLACEMENT:
            return law, _without(law, [tree.tokens[child] for child in tree.children(node)]), None
        if self.family == SEVERAL_DRAFTERS:
            law = self.draft_laws[rank % len(self.draft_laws)](context)
        return law, law, None


def _without(law: np.ndarray, tokens: Sequence[int]) -> np.ndarray | None:
    """The law without these tokens, renormalised; None when nothing is left, the law itself when nothing is taken."""
    if not tokens:
        return law
    rest = law.copy()
    rest[list(tokens)] = 0
    total = rest.sum()
    return rest / total if total > 0 else None


class RandomLaws:
    """A conditional law per context, drawn once from small integer weights; the same seed gives the same laws.

    Args:
        vocab_size: V.
        seed: of all contexts.
        is_exact: Fractions instead of float64 (of the same values).
        zero_share: the share of tokens that get probability zero; one token always keeps some.
    """

    def __init__(self, vocab_size: int, seed: int, is_exact: bool = False, zero_share: float = 0.0) -> None:
        self.vocab_size, self.seed, self.is_exact, self.zero_share = vocab_size, seed, is_exact, zero_share
        self._laws: dict[Context, np.ndarray] = {}

    def __call__(self, context: Context) -> np.ndarray:
        if context not in self._laws:
            rng = np.random.default_rng([self.seed, len(context), *context])
            weights = rng.integers(1, 20, self.vocab_size)
            weights *= rng.random(self.vocab_size) >= self.zero_share
            weights[rng.integers(self.vocab_size)] += 1
            self._laws[context] = toy_law(weights.tolist(), self.is_exact)
        return self._laws[context]


def toy_law(weights: Sequence[int], is_exact: bool = False) -> np.ndarray:
    """A read-only law [V] proportional to integer weights."""
    exact = [Fraction(weight, sum(weights)) for weight in weights]
    law = np.array(exact, dtype=object) if is_exact else np.array([float(prob) for prob in exact])
    law.flags.writeable = False
    return law


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
    """
    drafted = list(enumerate_traces(drafter))
    depth = max(len(context) for _, tree in drafted for context in tree.contexts) if depth is None else depth
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
    """Assert that a rule emits the target's law: exactly with Fractions, within `tolerance` with floats."""
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
