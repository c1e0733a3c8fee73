"""Several drafters in one tree: the union of their trees, each source weighed by how often it has been right.

A node's value is the chance that one of its sources is right, 1 - prod over sources (1 - source's path value).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from treespec.drafters.shared import policy_of_call, stack_trees
from treespec.errors import ConfigError
from treespec.policies import Chain
from treespec.policies.checks import check_count
from treespec.policies.heap import HostTree
from treespec.protocols import Drafter, Session, VerifiedStep
from treespec.tree import Path, TreeBatch

PRIOR_TRIALS = 4.0
MEMORY = 0.98
"""What a source's record weighs one step later: about the last fifty steps count."""


class Calibration:
    """A source's running record: its probabilities are scaled by what they were worth so far."""

    def __init__(self) -> None:
        self._hits = self._promised = PRIOR_TRIALS

    @property
    def scale(self) -> float:
        """In (0, 1]: a source that is better than it says is believed as it is."""
        return min(self._hits / self._promised, 1.0)

    def record(self, hits: float, promised: float) -> None:
        """Add one step: tokens that came as promised, and the probabilities promised in sum."""
        self._hits = MEMORY * self._hits + hits
        self._promised = MEMORY * self._promised + promised


class Merge:
    """The union of several drafters' trees, pruned to the most valuable nodes.

    Under a `Chain` the most valuable path is kept. Only selected children can be merged, as pruning sampled ones would
    change the output law: the drafters are told that the call does not sample, so children="auto" selects.

    Args:
        drafters: two or more drafters; each one's own policy, or else the call's, shapes its part.
        num_nodes: the most nodes of a merged tree, root included; None takes the call's policy's.

    Raises:
        ConfigError: fewer than two drafters, something that is no drafter, or a budget that is not a positive int.
    """

    def __init__(self, drafters: Sequence[Drafter], num_nodes: int | None = None) -> None:
        if len(drafters) < 2 or not all(isinstance(drafter, Drafter) for drafter in drafters):
            raise ConfigError(f"Merge needs a list of two or more drafters, got {drafters!r}")
        self._drafters = list(drafters)
        self._own_num_nodes = None if num_nodes is None else check_count("num_nodes", num_nodes)
        self._records = [Calibration() for _ in drafters]

    @property
    def scales(self) -> list[float]:
        """How much each drafter's probabilities are believed, in (0, 1]."""
        return [record.scale for record in self._records]

    def start(self, session: Session) -> None:
        """Start every part, told that the call does not sample; what was learned of them stays."""
        self._session = session
        self._is_chain = isinstance(session.policy, Chain)
        # Of a chain's sources the best path is kept, for which all of their nodes are wanted first.
        num_nodes = self._own_num_nodes or policy_of_call(None, session).max_nodes
        self._num_nodes = num_nodes * len(self._drafters) if self._is_chain else num_nodes
        self._proposed: list[list[dict[Path, float]]] = []
        for drafter in self._drafters:
            drafter.start(replace(session, is_sampling=False))

    def propose(self, max_depth: int) -> TreeBatch:
        """See `Drafter`.

        Raises:
            ConfigError: a drafter proposed sampled children.
        """
        self._proposed = [self._read(drafter, drafter.propose(max_depth)) for drafter in self._drafters]
        roots = self._session.history.last_tokens
        merged = []
        for row, root in enumerate(roots.tolist()):
            sources = [source[row] for source in self._proposed]
            merged.append(merge_paths(root, sources, self.scales, self._num_nodes))
        trees = stack_trees(merged, self._session.device)
        return trees.best_chains() if self._is_chain else trees

    def commit(self, step: VerifiedStep) -> None:
        """Compare what every source promised along the emitted tokens with what came."""
        for record, source in zip(self._records, self._proposed, strict=False):
            hits = promised = 0.0
            for paths, emitted in zip(source, step.emitted, strict=True):
                row_hits, row_promised = judge_paths(paths, emitted)
                hits, promised = hits + row_hits, promised + row_promised
            if promised > 0:
                record.record(hits, promised)
        self._proposed = []
        for drafter in self._drafters:
            drafter.commit(step)

    def select_rows(self, rows: Sequence[int]) -> None:
        """Keep only these rows, in this order, in every part."""
        for drafter in self._drafters:
            drafter.select_rows(rows)

    def _read(self, drafter: Drafter, trees: TreeBatch) -> list[dict[Path, float]]:
        """Per row the token paths of a source's tree and each last token's probability given the path before it."""
        if trees.laws is not None:
            raise ConfigError(
                f"{type(drafter).__name__} proposed sampled children, which cannot be merged without changing the "
                'output law: give it a policy with children="selected"'
            )
        values = None if trees.values is None else trees.values.tolist()
        return [
            conditional_probs(HostTree(tree.token_list, tree.parent_list, values[row] if values else []))
            for row, tree in enumerate(trees.trees)
        ]


def conditional_probs(tree: HostTree) -> dict[Path, float]:
    """Token paths below the root, parents first, and the probability of each one's last token given the others.

    Without values every token counts as certain; siblings of the same token count as one.
    """
    paths: list[Path] = [()]
    probs: dict[Path, float] = {}
    for node in range(1, len(tree.tokens)):
        parent = tree.parents[node]
        paths.append((*paths[parent], tree.tokens[node]))
        above = tree.values[parent] if tree.values else 1.0
        share = tree.values[node] / above if tree.values and above > 0 else 1.0
        probs[paths[node]] = max(probs.get(paths[node], 0.0), min(share, 1.0))
    return probs


def merge_paths(root: int, sources: Sequence[dict[Path, float]], scales: Sequence[float], num_nodes: int) -> HostTree:
    """The `num_nodes - 1` most valuable paths of the union of `sources`, a tree below `root`.

    A source's value of a path is the product of its scaled probabilities, so values never rise along a path and the
    best paths hold their own beginnings.
    """
    missed: dict[Path, float] = {}
    for probs, scale in zip(sources, scales, strict=True):
        reached: dict[Path, float] = {(): 1.0}
        for path, prob in probs.items():
            reached[path] = reached[path[:-1]] * scale * prob
            missed[path] = missed.get(path, 1.0) * (1.0 - reached[path])
    values = {path: 1.0 - miss for path, miss in missed.items()}
    best = sorted(values, key=lambda path: (-values[path], len(path)))[: num_nodes - 1]
    ids = {(): 0} | {path: node for node, path in enumerate(best, start=1)}
    return HostTree(
        tokens=[root, *(path[-1] for path in best)],
        parents=[-1, *(ids[path[:-1]] for path in best)],
        values=[1.0, *(values[path] for path in best)],
    )


def judge_paths(probs: dict[Path, float], emitted: Sequence[int]) -> tuple[float, float]:
    """How many tokens of a source were right and how many it promised, counted where its path agreed so far."""
    hits = promised = 0.0
    children: dict[Path, list[Path]] = {}
    for path in probs:
        children.setdefault(path[:-1], []).append(path)
    reached: Path = ()
    for token in emitted:
        siblings = children.get(reached, [])
        promised += min(sum(probs[path] for path in siblings), 1.0)
        reached = (*reached, token)
        if reached not in probs:
            break
        hits += 1.0
    return hits, promised
