"""Drafters for proofs in a real vLLM: children drawn from a table of distributions, and one that lies about them."""

from __future__ import annotations

from dataclasses import replace

import torch

from treespec import KAry, TreeBatch
from treespec.drafters.base import SessionSource
from treespec.protocols import Frontier, Proposal, Session, VerifiedStep

VOCAB = 5
TABLE = torch.softmax(torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(5)), -1)


class Bigram(SessionSource):
    """Draws children without replacement from a distribution that depends on the last token."""

    def start(self, session: Session) -> None:
        self._session = session

    def expand(self, frontier: Frontier) -> Proposal:
        return Proposal(TABLE[frontier.tokens])

    def propose(self, max_depth: int) -> TreeBatch:
        return self._policy.grow(self, max_depth)

    def update(self, step: VerifiedStep) -> None: ...

    def select_rows(self, rows: list[int]) -> None: ...

    def add_rows(self, num_rows: int) -> None: ...


class Independent(Bigram):
    """Draws two children of every node independently, to depth two."""

    def propose(self, max_depth: int) -> TreeBatch:
        return KAry((2, 2), children="iid").grow(self, max_depth)


class Liar(Bigram):
    """A planted mistake: it stores other distributions than those that it draws from."""

    def propose(self, max_depth: int) -> TreeBatch:
        trees = super().propose(max_depth)
        return trees if trees.draft_probs is None else replace(trees, draft_probs=trees.draft_probs.roll(1, -1))
