"""Known mistakes of speculative decoding, each planted into the whole engine: what the joint-distribution test has to
find.

Mistakes of a rule are a rule with a `verify` of its own, those of the engine replace one of its functions during a run.
By how much mistakes of rules and about trees shift a distribution, tests/verification/test_mutants.py enumerates.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from benchmarks.joint_distribution.cases import PLAIN, WARPED, Case, Models, kary
from treespec import Chain, DraftModel, KAry
from treespec.engine.streams import Streams
from treespec.engine.target_probs import TargetProbs
from treespec.hf import make_scorer
from treespec.hf.attention import mask as mask_module
from treespec.hf.attention.mask import CachedSlots, TreeAttention
from treespec.hf.cache import slot_cache as slot_cache_module
from treespec.hf.models import tree_scorer as causal_lm_module
from treespec.policies import children as children_module
from treespec.protocols import Frontier, NodeProbs, Proposal, RandomSource, VerifiableTree
from treespec.tree import Path, TreeBatch, Verdict
from treespec.verification.walks import likelihood_ratio, residual_weights


@dataclass(frozen=True)
class MistakenRejection:
    """Recursive rejection that draws the next token from another distribution.

    Args:
        name: of the rule.
        next_probs: maps (target distribution of the node, what its rejections left, what its parent's rejections had
            left or None at the root, whether the node is a leaf) to the distribution drawn from, all float [V].
    """

    name: str
    next_probs: Callable[[Tensor, Tensor, Tensor | None, bool], Tensor]
    is_lossless = True

    def reason_against(self, trees: TreeBatch) -> None:
        """None: it verifies every tree."""

    def verify(self, tree: VerifiableTree, target_probs: NodeProbs, rng: RandomSource) -> Verdict:
        path, parent_rest = [0], None
        while True:
            node = path[-1]
            rest, children = target_probs(node), tree.children(node)
            accepted = None
            for child in children:
                token, draft_probs = tree.token(child), tree.draft_probs_of(child)
                if rng.flip(child, min(likelihood_ratio(rest, draft_probs, token), 1)):
                    accepted = child
                    break
                left = residual_weights(rest, draft_probs, token)
                rest = left / left.sum() if left.sum() > 0 else rest
            if accepted is None:
                probs = self.next_probs(target_probs(node), rest, parent_rest, not children)
                return Verdict(tuple(path), rng.pick(node, probs), is_bonus=not children)
            path.append(accepted)
            parent_rest = rest


class RawDistributions(DraftModel):
    """A draft model that stores the softmax of its raw logits while it draws from the processed distribution."""

    def propose(self, max_depth: int) -> TreeBatch:
        self._raw_distributions: list[Tensor] = []
        batch = super().propose(max_depth)
        return replace(batch, draft_probs=torch.cat(self._raw_distributions)) if self._raw_distributions else batch

    def _probs(self, logits: Tensor, frontier: Frontier) -> Tensor:
        self._raw_distributions.append(logits.float().softmax(-1).flatten(0, 1))
        return super()._probs(logits, frontier)


def raw_probs_drafter(models: Models) -> DraftModel:
    return RawDistributions(make_scorer(models.draft))


_select, _attended_keys = children_module._select, mask_module._attended_keys
_pending_attention, _keep_paths = causal_lm_module.pending_attention, slot_cache_module.keep_paths
_from_seed = Streams.from_seed


def _select_as_if_drawn(proposal: Proposal, k: int) -> children_module.PickedChildren:
    picked = _select(proposal, k)
    return picked._replace(draft_probs=proposal.probs, num_sampled=k, evidence=picked.probs)


def empty_paths(probs: TargetProbs) -> list[list[Path]]:
    return [[()] * tree.num_nodes for tree in probs.trees.trees]


def keys_without_ancestors(slots: CachedSlots, ancestors: Tensor, num_new: int) -> Tensor:
    return _attended_keys(slots, torch.zeros_like(ancestors), num_new)


def slot_positions(slots: CachedSlots, parents: Tensor, num_new: int, *args: Any) -> TreeAttention:
    attention = _pending_attention(slots, parents, num_new, *args)
    numbers = torch.arange(parents.shape[1] - num_new, parents.shape[1])
    return replace(attention, position_ids=slots.lengths.unsqueeze(1) + numbers)


def keep_first_slots(layers: Any, num_slots: int, paths: Any) -> None:
    _keep_paths(layers, num_slots, [range(len(path)) for path in paths])


def one_noise(seed: int, device: torch.device) -> Streams:
    streams = _from_seed(seed, device)
    return streams._replace(draws=torch.Generator(device).manual_seed(streams.coins.initial_seed()))


def planted_bugs() -> list[Case]:
    """Every mistake, on trees where it shows."""
    correction = MistakenRejection("recursive", lambda probs, rest, parent_rest, is_leaf: probs)
    bonus = MistakenRejection(
        "recursive", lambda probs, rest, above, is_leaf: above if is_leaf and above is not None else rest
    )
    cases = [
        Case(correction, Chain(2), "chain", PLAIN, bug="correction drawn from the target distribution"),
        Case(correction, kary("iid"), "iid", PLAIN, bug="correction drawn from the target distribution"),
        Case(bonus, kary("iid"), "iid", PLAIN, bug="bonus token drawn from the parent's residual"),
    ]
    return [*cases, *_engine_bugs("recursive"), *_engine_bugs("traversal")]


def _engine_bugs(rule: str) -> list[Case]:
    """Mistakes that stand in for a function: (bug, trees, options, owner, name, stand-in)."""
    swaps: list[tuple[str, str, dict[str, Any], Any, str, Any]] = [
        ("top-k children treated as sampled", "selected", PLAIN, children_module, "_select", _select_as_if_drawn),
        ("processors see the root's ids", "iid", WARPED, TargetProbs, "_paths", empty_paths),
        ("tree mask without ancestors", "iid", PLAIN, mask_module, "_attended_keys", keys_without_ancestors),
        ("positions by slot, not by depth", "iid", PLAIN, causal_lm_module, "pending_attention", slot_positions),
        ("coins and draws from one stream", "iid", PLAIN, Streams, "from_seed", one_noise),
    ]
    cases = [
        Case(rule, kary(kind), kind, options, bug=bug, planted=partial(mock.patch.object, *swap))
        for bug, kind, options, *swap in swaps
    ]
    forgotten = partial(mock.patch.object, slot_cache_module, "keep_paths", keep_first_slots)
    # The first of four siblings is rarely kept.
    kind, tree = "without_replacement", KAry((4, 2), children="without_replacement")
    cases.append(Case(rule, tree, f"wide {kind}", PLAIN, bug="cache compaction forgotten", planted=forgotten))
    raw = "draft distribution stored before its processors"
    return [*cases, Case(rule, kary("iid"), "iid", WARPED, drafter=raw_probs_drafter, bug=raw)]
