"""How many draft tokens a rule accepts on a given tree, exactly in its coins, and how many any rule could accept."""

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from heapq import heappop, heappush
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from treespec.literature import StochasticBeam, dyspec
from treespec.literature.optimum import path_bound
from treespec.literature.transport import MAX_SUPPORT
from treespec.policies import BestFirst, Chain, Paths
from treespec.protocols import Frontier, Proposal, TreePolicy, VerificationRule
from treespec.sampling import inverse_cdf, truncate_probs
from treespec.testing import EnumeratingSource, enumerate_traces
from treespec.tree import IID, MIXED, SELECTED, WITHOUT_REPLACEMENT, TokenTree, TreeBatch, Verdict
from treespec.verification import RULES

Context = tuple[int, ...]
"""The number of a text and the tokens that follow it: the path from a root whose token is that number."""


class Distributions(Protocol):
    """A target and a draft: the distributions [V] of the token after each of some contexts, every one computed once.

    Contexts of several texts may be asked for together, which a model answers in one pass.
    """

    def target(self, contexts: Sequence[Context]) -> list[Tensor]: ...

    def draft(self, contexts: Sequence[Context]) -> list[Tensor]: ...


RANK_RATES = (0.65, 0.12, 0.06, 0.04, 0.03, 0.02, 0.015, 0.01)
"""About how often the first, second, ... of several siblings drawn without replacement is the one accepted."""

BEAM = 8
"""Nodes that sampled best-first trees expand per level; the deterministic tree, the reference, expands all it may."""


class Kind(NamedTuple):
    """A way of growing trees. `policy` maps a number of nodes to it; `support`: the draft is cut to that many tokens;
    `siblings` names how a tree of fixed shape draws siblings, where the optimum or a bound has a closed form."""

    policy: Callable[[int], TreePolicy]
    support: int | None = None
    siblings: str | None = None
    is_deterministic: bool = False


def binary_paths(num_nodes: int) -> list[Context]:
    """Rank paths of the tree whose nodes get two children each, level by level."""
    paths: list[Context] = [()]
    while len(paths) < num_nodes:
        parent = paths[(len(paths) - 1) // 2]
        paths.append((*parent, (len(paths) - 1) % 2))
    return paths[1:]


def rank_paths(num_nodes: int) -> list[Context]:
    """Rank paths of the nodes with the largest products of `RANK_RATES` (Sequoia's tree, Chen et al. 2024)."""
    heap: list[tuple[float, Context]] = [(-RANK_RATES[0], (0,))]
    paths: list[Context] = []
    while len(paths) < num_nodes - 1:
        value, path = heappop(heap)
        paths.append(path)
        heappush(heap, (value * RANK_RATES[0], (*path, 0)))
        if path[-1] + 1 < len(RANK_RATES):
            heappush(heap, (value / RANK_RATES[path[-1]] * RANK_RATES[path[-1] + 1], (*path[:-1], path[-1] + 1)))
    return paths


def stochastic_beam(num_nodes: int) -> TreePolicy:
    """RSD-S's tree (Jeon et al. 2024) of at most `num_nodes` nodes."""
    width = 2 if num_nodes <= 8 else 3
    return StochasticBeam(width, (num_nodes - 1) // width)


def binary(siblings: str, support: int | None = None) -> Kind:
    return Kind(lambda n: Paths(binary_paths(n), siblings), support, siblings)


TREES: dict[str, Kind] = {
    "chain": Kind(lambda n: Chain(n - 1)),
    "binary, i.i.d.": binary(IID),
    "binary, without replacement": binary(WITHOUT_REPLACEMENT),
    "binary, mixed": binary(MIXED),
    f"binary, i.i.d., draft's top {MAX_SUPPORT}": binary(IID, MAX_SUPPORT),
    f"binary, without replacement, draft's top {MAX_SUPPORT}": binary(WITHOUT_REPLACEMENT, MAX_SUPPORT),
    "by rank, without replacement": Kind(lambda n: Paths(rank_paths(n), WITHOUT_REPLACEMENT)),
    "best first, selected": Kind(lambda n: BestFirst(n, SELECTED, depth=n), is_deterministic=True),
    "stochastic beam": Kind(stochastic_beam),
    "dyspec": Kind(lambda n: dyspec(n, depth=n, beam=BEAM)),
    "best first, sampled": Kind(lambda n: BestFirst(n, WITHOUT_REPLACEMENT, depth=n, beam=BEAM)),
}


class TreeSource:
    """Serves a policy with the draft's distributions, one row per text; children are drawn with its own generator."""

    is_sampling = True

    def __init__(
        self, probs: Distributions, texts: Sequence[int], generator: torch.Generator, support: int | None = None
    ) -> None:
        self.generator, self._probs, self._support = generator, probs, support
        self.root_tokens = torch.tensor(texts)

    def expand(self, frontier: Frontier) -> Proposal:
        # Padding reads the root's distribution, which is not used.
        paths = zip(self.root_tokens.tolist(), frontier.path_tokens(), strict=True)
        contexts = [(root, *(path or ())) for root, row in paths for path in row]
        probs = torch.stack(self._probs.draft(contexts)).unflatten(0, tuple(frontier.tokens.shape))
        return Proposal(probs if self._support is None else truncate_probs(probs, self._support))


def grow(kind: Kind, num_nodes: int, probs: Distributions, texts: Sequence[int], seed: int) -> list[TokenTree]:
    """A tree below each of the texts, which may be given several times."""
    source = TreeSource(probs, texts, torch.Generator().manual_seed(seed), kind.support)
    return kind.policy(num_nodes).grow(source, num_nodes).trees


def inner_contexts(tree: TokenTree) -> dict[int, Context]:
    """The path's tokens, the root's included, of every node with children."""
    inner = (node for node, children in enumerate(tree.children_lists) if children)
    return {node: tuple(tree.token(i) for i in tree.path_to(node)) for node in inner}


def accepted_by_rule(tree: TokenTree, probs: Distributions) -> dict[str, float]:
    """Mean number of accepted draft tokens for every rule that supports the tree."""
    batch = TreeBatch.from_trees([tree])
    contexts = inner_contexts(tree)
    known = dict(zip(contexts, probs.target(list(contexts.values())), strict=True))
    # The distribution after a leaf does not change what is counted here.
    after_leaf = torch.ones(1)
    cached = CachedTree(tree)
    return {
        name: mean_accepted(rule, cached, lambda node: known.get(node, after_leaf))
        for name, rule in RULES.items()
        if rule.reason_against(batch) is None
    }


class CachedTree:
    """A tree that computes each child's distribution once: a rule is run on it dozens of times."""

    def __init__(self, tree: TokenTree) -> None:
        self.num_nodes, self.children, self.token = tree.num_nodes, tree.children, tree.token
        self.depths = tree.depths
        self.draft_probs_of = cache(tree.draft_probs_of)


BOTTOM_UP = {"block", "traversal", "transport_traversal"}
"""Rules that end where a coin accepts and go on otherwise."""
BY_NODE = {"target_walk", "token", "recursive", "k_seq", "optimal_transport", "ensemble", "threshold"}
"""Rules that start again at every node that they accept."""


def mean_accepted(rule: VerificationRule, tree: Any, target_probs: Callable[[int], Tensor]) -> float:
    """Mean number of accepted draft tokens over all coins and draws of a rule on one tree, by enumeration.

    One run visits all outcomes of a bottom-up rule; rules that start again at every node are enumerated node by node,
    others whole.
    """
    if rule.name in BOTTOM_UP:
        refusing = RefusingSource(tree.depths)
        rule.verify(tree, target_probs, refusing)
        return refusing.mean_depth
    if rule.name not in BY_NODE:
        return sum(weight * verdict.num_accepted for weight, verdict in outcomes(rule, tree, target_probs))
    reached = {0: 1.0}
    for node in range(tree.num_nodes):
        if tree.children(node) and reached[node] > 0:
            star = Star(tree, node)
            shares = accepted_children(rule, star, lambda below, node=node: target_probs(node if below == 0 else -1))
            reached |= {child: reached[node] * share for child, share in zip(tree.children(node), shares, strict=True)}
        else:
            reached |= dict.fromkeys(tree.children(node), 0.0)
    return sum(reached.values()) - 1


class Star:
    """One node of a tree and its children, numbered from 1, without what is below them."""

    def __init__(self, tree: Any, node: int) -> None:
        self._tree, self._nodes = tree, (node, *tree.children(node))
        self.num_nodes = len(self._nodes)

    def children(self, node: int) -> Sequence[int]:
        return range(1, self.num_nodes) if node == 0 else ()

    def token(self, node: int) -> int:
        return self._tree.token(self._nodes[node])

    def draft_probs_of(self, node: int) -> Tensor | None:
        return self._tree.draft_probs_of(self._nodes[node])


def accepted_children(rule: VerificationRule, star: Star, target_probs: Callable[[int], Tensor]) -> list[float]:
    """How often each of a star's children is accepted."""
    shares = [0.0] * star.num_nodes
    for weight, verdict in outcomes(rule, star, target_probs):
        shares[verdict.path[-1]] += weight
    return shares[1:]


def outcomes(
    rule: VerificationRule, tree: Any, target_probs: Callable[[int], Tensor]
) -> Iterator[tuple[float, Verdict]]:
    """Every outcome of a rule with its probability, draws without consequence left out."""
    return enumerate_traces(lambda rng: rule.verify(tree, target_probs, rng), partial(CountingSource, tree))


class RefusingSource:
    """Refuses every coin and sums up what would have been accepted: the mean depth at which the rule ends."""

    def __init__(self, depths: Sequence[int]) -> None:
        self._depths = depths
        self._remaining, self.mean_depth = 1.0, 0.0

    def flip(self, node: int, prob: Any) -> bool:
        self.mean_depth += self._remaining * float(prob) * self._depths[node]
        self._remaining *= 1 - float(prob)
        return False

    def pick(self, node: int, weights: Tensor) -> int:
        return 0


class CountingSource(EnumeratingSource):
    """Enumerates a rule's outcomes as far as acceptance depends on them.

    A token drawn at a node matters only where it is a child's, and only for rules that descend by it. Those flip no
    coins, so a draw after a flip is taken to be the last: every rule here is of one of these two sorts.
    """

    def __init__(self, tree: Any, script: Sequence[int]) -> None:
        super().__init__(script)
        self._tree, self._has_flipped = tree, False

    def flip(self, node: int, prob: Any) -> bool:
        self._has_flipped = True
        return super().flip(node, float(prob))

    def pick(self, node: int, weights: Tensor) -> int:
        if self._has_flipped or not self._tree.children(node):
            return 0
        tokens = dict.fromkeys(self._tree.token(child) for child in self._tree.children(node))
        probs = {token: float(weights[token] / weights.sum()) for token in tokens}
        return self._branch([*probs.items(), (-1, 1 - sum(probs.values()))])


def target_paths(probs: Distributions, texts: Sequence[int], length: int, seed: int) -> list[Context]:
    """A path of `length` tokens below each of the texts, drawn from the target."""
    generator = torch.Generator().manual_seed(seed)
    paths: list[Context] = [(text,) for text in texts]
    for _ in range(length):
        uniforms = torch.rand(len(paths), dtype=torch.float64, generator=generator)
        drawn = map(inverse_cdf, probs.target(paths), uniforms)
        paths = [(*path, int(token)) for path, token in zip(paths, drawn, strict=True)]
    return paths


def sampled_bound(kind: Kind, num_nodes: int, distributions: Distributions, path: Context) -> float:
    """One sample of the whole-tree bound for binary trees: its mean over paths drawn from the target bounds every
    lossless rule's acceptance; see `treespec.literature.optimum.path_bound`.
    """
    parents = [-1, *((node - 1) // 2 for node in range(1, num_nodes))]
    children: list[list[int]] = [[] for _ in parents]
    for node, parent in enumerate(parents[1:], start=1):
        children[parent].append(node)
    depth = num_nodes.bit_length() - 1
    prefixes = [path[: end + 1] for end in range(depth)]
    path = path[1 : depth + 1]
    targets, drafts = distributions.target(prefixes), distributions.draft(prefixes)
    if kind.support is not None:
        drafts = [truncate_probs(draft, kind.support) for draft in drafts]
    probs = torch.stack([target[token] for target, token in zip(targets, path, strict=True)]).double().cumprod(0)

    def held(node: int, start: int, end: int) -> float:
        """Pr(the subtree of `node`, reached by `path[:start]`, holds `path[:end]`)."""
        if start == end:
            return 1.0
        below = [held(child, start + 1, end) for child in children[node]]
        drawn = sibling_probs(kind.siblings, drafts[start], path[start], len(below))
        if kind.siblings == IID:
            missed = 1.0
            for prob, rest in zip(drawn, below, strict=True):
                missed *= 1 - prob * rest
            return 1 - missed
        return sum(prob * rest for prob, rest in zip(drawn, below, strict=True))

    inclusion = [held(0, 0, end) for end in range(1, depth + 1)]
    return float(path_bound(probs, torch.tensor(inclusion, dtype=torch.float64)))


def sibling_probs(siblings: str | None, draft: Tensor, token: int, num_siblings: int) -> list[float]:
    """The probability that each of at most two siblings is `token`; i.i.d. ones are independent, others exclusive."""
    prob = float(draft[token])
    if num_siblings < 2:
        return [prob] * num_siblings
    if siblings == IID:
        return [prob, prob]
    if siblings == MIXED:
        top = int(draft.argmax())
        rest = 1 - float(draft[top])
        return [0.0 if token == top or not rest > 0 else prob / rest, float(token == top)]
    odds = draft.double() / (1 - draft.double())
    others = odds.sum() - odds[token] if prob < 1 else torch.zeros(())
    return [prob, prob * float(others)]
