"""Known mistakes in verification rules, each as a rule of its own: what the exact oracle has to catch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from treespec.protocols import NodeProbs, RandomSource, VerifiableTree
from treespec.testing import ConditionalProbs, ToyTree, VerifyingRule
from treespec.tree import Verdict
from treespec.verification.walks import likelihood_ratio, residual_weights


@dataclass(frozen=True)
class Misread:
    """A sound rule that is shown a tree as a mistaken implementation would read it."""

    rule: VerifyingRule
    misreading: Callable[[ToyTree], Any]

    def verify(self, tree: VerifiableTree, target_probs: NodeProbs, rng: RandomSource) -> Verdict:
        assert isinstance(tree, ToyTree)
        verdict = self.rule.verify(self.misreading(tree), target_probs, rng)
        # Dropped children leave a node that only looks like a leaf.
        return verdict._replace(is_bonus=not tree.children(verdict.path[-1]))


@dataclass
class View:
    """A toy tree with some of its answers replaced."""

    tree: ToyTree
    probs_of: Callable[[int], Any] | None = None
    children_of: Callable[[int], list[int]] | None = None

    @property
    def num_nodes(self) -> int:
        return self.tree.num_nodes

    def token(self, node: int) -> int:
        return self.tree.token(node)

    def children(self, node: int) -> list[int]:
        return self.children_of(node) if self.children_of else self.tree.children(node)

    def draft_probs_of(self, node: int) -> Any:
        return self.probs_of(node) if self.probs_of else self.tree.draft_probs_of(node)


def whole_probs(tree: ToyTree) -> View:
    """Draws without replacement, read as if earlier siblings had not been taken out."""
    return View(tree, probs_of=lambda node: tree.base_distributions[node])


def without_siblings(tree: ToyTree) -> View:
    """Independent draws, read as draws without replacement, but for duplicates, which have no such distribution."""

    def probs_of(node: int) -> Any:
        earlier = [tree.tokens[i] for i in tree.children(tree.parents[node]) if i < node]
        if tree.tokens[node] in earlier:
            return tree.draft_probs[node]
        probs = tree.draft_probs[node].copy()
        probs[earlier] = 0
        return probs / probs.sum()

    return View(tree, probs_of)


def without_duplicates(tree: ToyTree) -> View:
    def children_of(node: int) -> list[int]:
        children = tree.children(node)
        return [c for c in children if tree.tokens[c] not in [tree.tokens[i] for i in children if i < c]]

    return View(tree, children_of=children_of)


def sorted_by_probs(tree: ToyTree) -> View:
    """Siblings in order of decreasing draft probability."""

    def children_of(node: int) -> list[int]:
        return sorted(tree.children(node), key=lambda child: -tree.base_distributions[child][tree.tokens[child]])

    return View(tree, children_of=children_of)


def without_unlikely(tree: ToyTree) -> View:
    """Sampled siblings below a draft probability of .3 are pruned."""

    def children_of(node: int) -> list[int]:
        return [c for c in tree.children(node) if tree.base_distributions[c][tree.tokens[c]] * 10 >= 3]

    return View(tree, children_of=children_of)


def as_if_sampled(draft: ConditionalProbs) -> Callable[[ToyTree], View]:
    """Selected children, read as draws from the draft distribution."""
    return lambda tree: View(tree, probs_of=lambda node: draft(tree.contexts[tree.parents[node]]))


def with_selected_kept(draft: ConditionalProbs) -> Callable[[ToyTree], View]:
    """Mixed children whose sample is read as a draw from the whole draft distribution."""

    def probs_of(tree: ToyTree, node: int) -> Any:
        return None if tree.draft_probs[node] is None else draft(tree.contexts[tree.parents[node]])

    return lambda tree: View(tree, probs_of=lambda node: probs_of(tree, node))


class CorrectionFromTarget:
    """After the rejections the next token is drawn from the target distribution instead of the residual."""

    def verify(self, tree: VerifiableTree, target_probs: NodeProbs, rng: RandomSource) -> Verdict:
        return _walk(tree, target_probs, rng, next_probs=lambda node, probs, parent_probs: target_probs(node))


class BonusFromParent:
    """The bonus token is drawn from what the rejections at the leaf's parent had left."""

    def verify(self, tree: VerifiableTree, target_probs: NodeProbs, rng: RandomSource) -> Verdict:
        def next_probs(node: int, probs: Any, parent_probs: Any) -> Any:
            return probs if tree.children(node) or parent_probs is None else parent_probs

        return _walk(tree, target_probs, rng, next_probs)


def _walk(
    tree: VerifiableTree, target_probs: NodeProbs, rng: RandomSource, next_probs: Callable[[int, Any, Any], Any]
) -> Verdict:
    path, parent_probs = [0], None
    while True:
        node = path[-1]
        probs = target_probs(node)
        for child in tree.children(node):
            token, draft_probs = tree.token(child), tree.draft_probs_of(child)
            if rng.flip(child, min(likelihood_ratio(probs, draft_probs, token), 1)):
                path.append(child)
                parent_probs = probs
                break
            rest = residual_weights(probs, draft_probs, token)
            probs = rest / rest.sum()
        else:
            weights = next_probs(node, probs, parent_probs)
            return Verdict(tuple(path), rng.pick(node, weights), not tree.children(node))


class DuplicatesCountedTwice:
    """A target walk that gives every child its token's target probability, duplicates included."""

    def verify(self, tree: VerifiableTree, target_probs: NodeProbs, rng: RandomSource) -> Verdict:
        path = [0]
        while True:
            node = path[-1]
            probs, children = target_probs(node), tree.children(node)
            others = probs.clip(min=0)
            others[[tree.token(child) for child in children]] = 0
            choice = rng.pick(node, np.concatenate([probs[[tree.token(child) for child in children]], others]))
            if choice >= len(children):
                return Verdict(tuple(path), choice - len(children), not children)
            path.append(children[choice])


class FreshSamplePerPath:
    """Every leaf path is matched with draws of its own, and the longest match wins."""

    def verify(self, tree: VerifiableTree, target_probs: NodeProbs, rng: RandomSource) -> Verdict:
        assert isinstance(tree, ToyTree)
        best = None
        for number, leaf_path in enumerate(_leaf_paths(tree, 0)):
            verdict = self._match(tree, leaf_path, target_probs, rng, tree.num_nodes * number)
            best = verdict if best is None or len(verdict.path) > len(best.path) else best
        assert best is not None
        return best._replace(is_bonus=not tree.children(best.path[-1]))

    @staticmethod
    def _match(
        tree: ToyTree, leaf_path: tuple[int, ...], target_probs: NodeProbs, rng: RandomSource, offset: int
    ) -> Verdict:
        for depth, node in enumerate(leaf_path):
            token = rng.pick(offset + node, target_probs(node))
            if depth + 1 == len(leaf_path) or tree.token(leaf_path[depth + 1]) != token:
                return Verdict(leaf_path[: depth + 1], token, False)
        raise AssertionError("the leaf always ends the match")


def _leaf_paths(tree: ToyTree, node: int) -> list[tuple[int, ...]]:
    below = [path for child in tree.children(node) for path in _leaf_paths(tree, child)]
    return [(node, *path) for path in below] if below else [(node,)]


@dataclass(frozen=True)
class MistakenBlock:
    """Block verification with one of two mistakes."""

    has_token_wise_residual: bool = False
    stops_at_first_failure: bool = False

    def verify(self, tree: VerifiableTree, target_probs: NodeProbs, rng: RandomSource) -> Verdict:
        chain: list[int] = list(range(tree.num_nodes))
        masses: list[Any] = [1]
        for node in chain[1:]:
            ratio = likelihood_ratio(target_probs(node - 1), tree.draft_probs_of(node), tree.token(node))
            masses.append(min(masses[-1] * ratio, 1))
        num_kept = 0
        for node in chain[1:]:
            if rng.flip(node, self._keep_prob(tree, target_probs, masses, node)):
                num_kept = node
            elif self.stops_at_first_failure:
                break
        path = tuple(chain[: num_kept + 1])
        if num_kept == len(chain) - 1:
            return Verdict(path, rng.pick(num_kept, target_probs(num_kept)), True)
        mass = 1 if self.has_token_wise_residual else masses[num_kept]
        return Verdict(path, rng.pick(num_kept, self._rest(tree, target_probs, num_kept, mass)), False)

    def _keep_prob(self, tree: VerifiableTree, target_probs: NodeProbs, masses: list[Any], node: int) -> Any:
        if node == tree.num_nodes - 1:
            return masses[node]
        total = self._rest(tree, target_probs, node, masses[node]).sum()
        return total / (total + (1 - masses[node])) if total > 0 else 0

    @staticmethod
    def _rest(tree: VerifiableTree, target_probs: NodeProbs, node: int, mass: Any) -> Any:
        return residual_weights(mass * target_probs(node), tree.draft_probs_of(node + 1), tree.token(node + 1))


@dataclass(frozen=True)
class MistakenTraversal:
    """Traversal with one of two mistakes about the mass that is left after a rejection."""

    keeps_mass: bool = False
    skips_normalising: bool = False

    def verify(self, tree: VerifiableTree, target_probs: NodeProbs, rng: RandomSource) -> Verdict:
        verdict = self._visit(0, 1, (0,), tree, target_probs, rng)
        assert verdict is not None, "the root is always accepted"
        return verdict

    def _visit(
        self,
        node: int,
        mass: Any,
        path: tuple[int, ...],
        tree: VerifiableTree,
        target_probs: NodeProbs,
        rng: RandomSource,
    ) -> Verdict | None:
        probs = target_probs(node)
        for child in tree.children(node):
            token, draft_probs = tree.token(child), tree.draft_probs_of(child)
            child_mass = min(likelihood_ratio(mass * probs, draft_probs, token), 1)
            verdict = self._visit(child, child_mass, (*path, child), tree, target_probs, rng) if child_mass else None
            if verdict is not None:
                return verdict
            rest = residual_weights(mass * probs, draft_probs, token)
            total = rest.sum()
            if not total > 0:
                return Verdict(path, rng.pick(node, probs), False) if node == 0 else None
            if not self.keeps_mass:
                mass = total if self.skips_normalising else total / (total + (1 - mass))
            probs = rest / total
        if node == 0 or rng.flip(node, mass):
            return Verdict(path, rng.pick(node, probs), not tree.children(node))
        return None
