"""Known mistakes in verification rules, most of them one changed line of a rule's own source."""

import sys
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from treespec.protocols import NodeProbs, RandomSource, VerifiableTree
from treespec.testing import RandomDistributions, ToyTree
from treespec.tree import Verdict
from treespec.verification import RULES, walks
from treespec.verification.walks import likelihood_ratio, residual_weights

TARGET, *DRAFTS = (RandomDistributions(3, seed=seed, is_exact=True) for seed in (13, 113, 213))


def changed(module: ModuleType, **globals_: Any) -> Callable[..., ModuleType]:
    """`changed(module)(old, new, ...)`: the module again, from its source with `new` in place of `old`, once each."""

    def copy(*changes: str) -> ModuleType:
        source = Path(str(module.__file__)).read_text()
        for old, new in zip(changes[::2], changes[1::2], strict=True):
            assert source.count(old) == 1, f"a planted bug replaces {old!r}, which stands {source.count(old)} times"
            source = source.replace(old, new)
        mutant = ModuleType(module.__name__)
        exec(compile(source, f"<changed {module.__name__}>", "exec"), mutant.__dict__)
        vars(mutant).update(globals_)
        return mutant

    return copy


def mistaken(name: str, *changes: str) -> Any:
    """The rule of this name with changes in its module, see `changed`."""
    rule = type(RULES[name])
    mutant = changed(sys.modules[rule.__module__], distinct=distinct, without=without, draft=DRAFTS[0], np=np)
    return getattr(mutant(*changes), rule.__name__)()


def distinct(tree: ToyTree, node: int) -> list[int]:
    """The children without those whose token an earlier sibling carries."""
    children = tree.children(node)
    return [c for c in children if tree.tokens[c] not in [tree.tokens[i] for i in children if i < c]]


def without(tree: ToyTree, node: int) -> Any:
    """The draft distribution without the earlier siblings' tokens; as it is for duplicates, which have none then."""
    earlier = [tree.tokens[i] for i in tree.children(tree.parents[node]) if i < node]
    if tree.tokens[node] in earlier:
        return tree.draft_probs[node]
    probs = tree.draft_probs[node].copy()
    probs[earlier] = 0
    return probs / probs.sum()


def bonus_from_parent() -> Any:
    """The bonus token is drawn from what the rejections at the leaf's parent had left."""
    rule = mistaken("recursive")
    bonus = changed(walks)(
        "    path = [0]\n    while True:\n        node = path[-1]\n        probs", "    path, weights = [0], None\n"
        "    while True:\n        node = path[-1]\n        probs", "(None, probs) if is_leaf",
        "(None, probs if weights is None else weights) if is_leaf",
    )  # fmt: skip
    type(rule).verify.__globals__["walk_down"] = bonus.walk_down
    return rule


class FreshSamplePerPath:
    """A target walk in which every leaf path is matched with draws of its own, and the longest match wins."""

    def verify(self, tree: ToyTree, target_probs: NodeProbs, rng: RandomSource) -> Verdict:
        leaves = [node for node in range(tree.num_nodes) if not tree.children(node)]
        paths = [tree.to_token_tree().path_to(leaf) for leaf in leaves]
        best = max((self._match(tree, path, target_probs, rng) for path in paths), key=lambda found: len(found.path))
        return best._replace(is_bonus=not tree.children(best.path[-1]))

    @staticmethod
    def _match(tree: ToyTree, path: tuple[int, ...], target_probs: NodeProbs, rng: RandomSource) -> Verdict:
        for depth, node in enumerate(path, start=1):
            token = rng.pick(tree.num_nodes * path[-1] + node, target_probs(node))
            if depth == len(path) or tree.token(path[depth]) != token:
                return Verdict(path[:depth], token, False)
        raise AssertionError("the leaf always ends the match")


class BlockStopsAtFirstFailure:
    """Block verification that keeps the tokens before the first coin that fails, not up to the last one that holds."""

    def verify(self, tree: VerifiableTree, target_probs: NodeProbs, rng: RandomSource) -> Verdict:
        chain = range(1, tree.num_nodes)
        ratios = [likelihood_ratio(target_probs(i - 1), tree.draft_probs_of(i), tree.token(i)) for i in chain]
        masses = list(accumulate(ratios, lambda mass, ratio: min(mass * ratio, 1), initial=1))
        rests = [
            residual_weights(masses[i - 1] * target_probs(i - 1), tree.draft_probs_of(i), tree.token(i)) for i in chain
        ]
        node = 0
        for i in chain:
            total = 0 if i == chain[-1] else rests[i].sum()
            if not rng.flip(i, masses[i] if i == chain[-1] else total and total / (total + (1 - masses[i]))):
                break
            node = i
        is_bonus = node == chain[-1]
        return Verdict(
            tuple(range(node + 1)), rng.pick(node, target_probs(node) if is_bonus else rests[node]), is_bonus
        )
