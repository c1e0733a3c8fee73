"""The distribution that a rule really emits, summed over its runs: one for every way coins and draws can fall."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise, product
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from treespec.errors import ConfigError
from treespec.protocols import NodeProbs, RandomSource, VerifiableTree, VerificationRule
from treespec.testing.drafter import SEVERAL_DRAFTERS, TOY_SCHEMES, ConditionalProbs, ToyDrafter, distribution_pairs
from treespec.testing.trees import SHAPES, Context, ToyTree
from treespec.tree import IID, WITHOUT_REPLACEMENT, TreeBatch, Verdict

_Result = TypeVar("_Result")
_Drafts = Callable[[RandomSource], ToyTree] | Sequence[tuple[Any, ToyTree]]
_SLACK = 1e-9


class EnumeratingSource:
    """Takes the branches that a script names, and the first one where the script ends; multiplies their weights.

    Each coin and each draw may be used once: a real random source would return the same number again.
    """

    def __init__(self, script: Sequence[int] = ()) -> None:
        self._script = script
        self.weight = 1
        self._coins: set[int] = set()
        self._draws: set[int] = set()
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
        choice = self._script[len(self.taken)] if len(self.taken) < len(self._script) else 0
        outcome, weight = options[choice]
        self.weight = self.weight * weight
        self.taken.append(choice)
        self.num_options.append(len(options))
        return outcome


def enumerate_traces(
    run: Callable[[RandomSource], _Result], source: Callable[[Sequence[int]], EnumeratingSource] = EnumeratingSource
) -> Iterator[tuple[Any, _Result]]:
    """Every outcome of `run`, a pure function of its random source, with its weight; weights add up to one."""
    script: list[int] = []
    while True:
        rng = source(script)
        result = run(rng)
        yield rng.weight, result
        script = rng.taken
        num_options = rng.num_options
        while script and script[-1] + 1 == num_options[len(script) - 1]:
            script.pop()
        if not script:
            return
        script[-1] += 1


class VerifyingRule(Protocol):
    """The part of a rule that the oracle calls."""

    def verify(self, tree: VerifiableTree, target_probs: NodeProbs, rng: RandomSource) -> Verdict: ...


class ExactDistribution(NamedTuple):
    """`probs` (what a rule emits) and `target_probs`: joint distributions of depth + 1 tokens, an axis [V] for each."""

    probs: np.ndarray
    target_probs: np.ndarray
    total_weight: Any
    mean_accepted: Any
    num_traces: int

    @property
    def error(self) -> Any:
        """The largest absolute difference of an entry."""
        return abs(self.probs - self.target_probs).max()

    @property
    def total_variation(self) -> Any:
        return abs(self.probs - self.target_probs).sum() / 2


def exact_distribution(
    rule: VerifyingRule, drafter: _Drafts, target: ConditionalProbs, depth: int | None = None
) -> ExactDistribution:
    """The joint distribution of `depth + 1` tokens that a rule emits on a drafter's trees, by enumeration.

    `drafter` draws a tree by its random source only, e.g. a `ToyDrafter`; for several rules on the same trees give what
    `list(enumerate_traces(drafter))` has found once. `depth` is at least that of every tree, None that depth itself.

    Raises:
        ConfigError: a tree is deeper than `depth`.
        AssertionError: the rule uses a coin twice, a probability above one, or an invalid path.
    """
    drafted = list(enumerate_traces(drafter)) if callable(drafter) else drafter
    max_depth = max(len(context) for _, tree in drafted for context in tree.contexts)
    depth = max_depth if depth is None else depth
    if depth < max_depth:
        raise ConfigError(f"depth must be at least that of the trees, {max_depth}, got {depth}")
    emitted: dict[Context, Any] = {}
    accepted: Any = 0
    num_traces = 0
    for tree_weight, tree in drafted:
        distributions = [target(context) for context in tree.contexts]
        for weight, verdict in enumerate_traces(
            lambda c, tree=tree, probs=distributions: rule.verify(tree, probs.__getitem__, c)
        ):
            tokens = (*tree.contexts[_last_node(tree, verdict)], int(verdict.next_token))
            emitted[tokens] = emitted.get(tokens, 0) + tree_weight * weight
            accepted = accepted + tree_weight * weight * verdict.num_accepted
            num_traces += 1
    distribution = sum(weight * _extended(tokens, target, depth + 1) for tokens, weight in emitted.items())
    return ExactDistribution(
        np.asarray(distribution), _extended((), target, depth + 1), sum(emitted.values()), accepted, num_traces
    )


def assert_lossless(
    rule: VerifyingRule, drafter: _Drafts, target: ConditionalProbs, depth: int | None = None
) -> ExactDistribution:
    """Assert that a rule emits the target's distribution: exactly with Fractions, within 1e-12 with floats.

    Arguments and errors as for `exact_distribution`; AssertionError also says how far the distribution is off.
    """
    result = exact_distribution(rule, drafter, target, depth)
    bound = 0 if result.target_probs.dtype == object else 1e-12
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


def _extended(tokens: Context, target: ConditionalProbs, length: int) -> np.ndarray:
    """The joint distribution of `length` tokens that start with `tokens` and follow the target: [V] * length."""
    vocab_size = len(target(()))
    joint = np.zeros((vocab_size,) * length, dtype=target(()).dtype)
    joint[tokens] = _continuation(tokens, target, length - len(tokens))
    return joint


def _continuation(context: Context, target: ConditionalProbs, length: int) -> Any:
    if length == 0:
        return 1
    probs = target(context)
    rows = [prob * np.asarray(_continuation((*context, token), target, length - 1)) for token, prob in enumerate(probs)]
    return np.array(rows, dtype=probs.dtype)


class Case(NamedTuple):
    """The names of a sampling scheme, a shape and a pair of distributions."""

    scheme: str
    shape: str
    distributions: str


def assert_lossless_everywhere(rule: VerificationRule, is_exact: bool = False) -> dict[Case, ExactDistribution]:
    """`assert_lossless` in every case that the rule's `reason_against` does not exclude.

    `is_exact` computes in Fractions instead of float64, which is slower.

    Raises:
        AssertionError: the rule is not lossless; names the case.
        ConfigError: the rule supports no case at all.
    """
    found: dict[Case, ExactDistribution] = {}
    for case, drafter, target in supported_cases(rule, is_exact):
        try:
            found[case] = assert_lossless(rule, drafter, target)
        except AssertionError as error:
            raise AssertionError(f"{case}: {error}") from error
    if not found:
        raise ConfigError(f"rule '{rule.name}' supports no toy tree: reason_against() excludes all of them")
    return found


def supported_cases(
    rule: VerificationRule, is_exact: bool = False, cases: Iterable[Case] | None = None
) -> Iterator[tuple[Case, ToyDrafter, ConditionalProbs]]:
    """The given cases (None: all) whose trees the rule supports, with drafter and target distribution."""
    for case in cases or (Case(*names) for names in product(TOY_SCHEMES, SHAPES, distribution_pairs(2))):
        drafter, target = toy_case(case, is_exact)
        batches = (TreeBatch.from_trees([tree.to_token_tree()]) for _, tree in enumerate_traces(drafter))
        if all(rule.reason_against(trees) is None for trees in batches):
            yield case, drafter, target


def toy_case(case: Case, is_exact: bool = False) -> tuple[ToyDrafter, ConditionalProbs]:
    """The drafter and the target distribution of a case, over three tokens, or two where three would take minutes."""
    scheme, shape, distributions = case
    if scheme in (IID, SEVERAL_DRAFTERS):
        is_small = shape == "3-1-1" or (shape == "2x2" and distributions != "generic")
    else:
        has_many_trees = distributions in ("generic", "equal", "one-hot target")
        is_small = scheme == WITHOUT_REPLACEMENT and shape == "3-1-1" and has_many_trees
    target, drafts = distribution_pairs(2 if is_small else 3, is_exact)[distributions]
    return ToyDrafter(scheme, SHAPES[shape], drafts), target
