"""The drafters that the benchmarks compare, by name.

Cold drafters are empty at the start of a prompt; warm ones start from what ships with treespec for this model, which
was written by the model itself and holds no benchmark prompt. Warm merges have learned the weights
of their parts on other prompts, like an object that has served some calls.
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn

from treespec import Eagle3, load_drafter, optimize, shipped_head
from treespec.cpu.native import NativeError
from treespec.drafters import DraftModel, Merge, SuffixLookup, TokenRecycling, WarmStart
from treespec.drafters.lookup.suffix_store import SuffixStore
from treespec.drafters.lookup.suffix_text import SuffixText
from treespec.drafters.merge.opinion_pool import OpinionPool
from treespec.lab.selftest.drafters import Static
from treespec.lab.smollm2 import NAME
from treespec.protocols import CausalScorer, Drafter, Frontier, Proposal
from treespec.tree import TreeBatch

DRAFT = "draft"


class Kit(Protocol):
    """The models and the learned state that drafters are made from, for one call of generation at a time.

    Attributes:
        pool: what a warm merge has learned of its parts before, None without any.
    """

    pool: OpinionPool | None

    def scorer(self, name: str) -> CausalScorer:
        """The scorer of `DRAFT`, the target without some layers."""
        ...


class Entry(NamedTuple):
    """`make(kit)` gives a fresh drafter.

    `reads_logits`: it learns from the target's logits at nodes that were rejected. `scorer`: the draft model whose
    distribution it has, None for drafters that only give candidates. `is_learning`: a merge that begins with what it
    learned on other prompts.
    """

    make: Callable[[Kit], Drafter]
    reads_logits: bool = False
    scorer: str | None = None
    is_learning: bool = False


@cache
def warm_start() -> WarmStart:
    """The shipped warm start of the benchmarks' model, read once."""
    return WarmStart.shipped(NAME)


def fastest_head(model: Any) -> Eagle3:
    """The shipped head with weights of 8 bits, where the machine's compiler can build their product.

    That costs next to no acceptance and no exactness, and a pass reads a quarter of the bytes.
    """
    head = load_drafter(shipped_head(NAME), model)
    assert isinstance(head, Eagle3)
    make_fast(head.head)
    return head


def make_fast(head: nn.Module) -> None:
    """Weights of 8 bits, or the fastest exact kernels where no compiler is."""
    try:
        optimize(head, dtype=torch.int8)
    except NativeError:
        optimize(head)


class MadeUp(Static, ABC):
    """A drafter that learns nothing: `expand` says what it proposes, at most `most_depth` deep."""

    most_depth = sys.maxsize

    def propose(self, max_depth: int) -> TreeBatch:
        return self._policy.grow(self, min(max_depth, self.most_depth))

    @abstractmethod
    def expand(self, frontier: Frontier) -> Proposal:
        """See `DraftSource`."""


class FrozenStore(SuffixStore):
    """Texts that stay as they are: one store serves all prompts, and none learns from another."""

    def record(self, text: SuffixText, num_before: int) -> None:
        """Add nothing."""


@cache
def warm_store() -> FrozenStore:
    return FrozenStore([text.numpy() for text in warm_start().texts])


def warm_suffix() -> SuffixLookup:
    return SuffixLookup(store=warm_store())


DRAFTERS: dict[str, Entry] = {
    "suffix, request only": Entry(lambda _: SuffixLookup()),
    "recycling, cold": Entry(lambda _: TokenRecycling(), reads_logits=True),
    "recycling + suffix, cold": Entry(lambda _: Merge([TokenRecycling(), SuffixLookup()]), reads_logits=True),
    "suffix, warm": Entry(lambda _: warm_suffix()),
    "recycling, warm": Entry(lambda _: warm_start().recycling(), reads_logits=True),
    "recycling + suffix, warm": Entry(
        lambda kit: Merge([warm_start().recycling(), warm_suffix()], pool=kit.pool), reads_logits=True, is_learning=True
    ),
    "draft model": Entry(lambda kit: DraftModel(kit.scorer(DRAFT)), scorer=DRAFT),
    "draft model + recycling + suffix, warm": Entry(
        lambda kit: Merge([DraftModel(kit.scorer(DRAFT)), warm_start().recycling(), warm_suffix()], pool=kit.pool),
        reads_logits=True,
        is_learning=True,
    ),
}
