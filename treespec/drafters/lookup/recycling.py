"""Token recycling (Luo et al. 2024): the target's best candidates at every node, accepted or not, draft later trees."""

from collections import deque
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from treespec.checks import check_count
from treespec.data.tensor_file import read_tensors, write_tensors
from treespec.drafters.base import SessionSource, can_use_heap
from treespec.drafters.lookup.recycling_table import PACKED, Table, check_table, pack_table, unpack_table
from treespec.errors import ConfigError, VocabularyMismatchError
from treespec.policies.heap import grow_best_first
from treespec.protocols import Frontier, Proposal, Session, VerifiedStep
from treespec.tree import PADDING_PARENT, TreeBatch

FORMAT = "treespec-recycling-1"
PRIOR_HITS, PRIOR_TRIALS = 4.0, 10.0
"""The prior of rank r being right is 0.4 x 2^-r, with the weight of ten observations."""
MOST_UNREAD, MANY_LOGITS = 32, 1 << 20
"""The latest steps are learned from when the table is next read: till then they cost nothing. Earlier ones with more
logits in all are not, as these take memory."""
MANY_TRIALS = 2.0**20
"""Counts are halved beyond this: float32 cannot add one to 2^24, and recent outcomes should count."""


class TokenRecycling(SessionSource):
    """Drafts from an adjacency table: the k tokens that the target last found most likely after every token.

    The table is on the host, is updated from every node of every target pass by one copy, and persists across calls. A
    candidate's probability is how often its rank held the target's most likely token so far. Threads must not share a
    table, as every call writes to it. A given table is copied and has its own k.

    Raises `ConfigError`: `num_candidates` is not a positive int, or see `check_table`.
    """

    confidence_weight = 0.4  # How often a rank was right is less reliable than a distribution.

    def __init__(self, num_candidates: int = 8, table: Table | None = None) -> None:
        self.num_candidates = check_count("num_candidates", num_candidates)
        self._table: Tensor | None = None
        self._hits = torch.zeros(0, dtype=torch.float32, device="cpu")
        self._unread = deque[VerifiedStep](maxlen=MOST_UNREAD)
        if table is not None:
            check_table(table)
            self.num_candidates = table.candidates.shape[1]
            self._table = table.candidates.clone().cpu()
            self._hits = table.hits.clone().cpu()

    def start(self, session: Session) -> None:
        """Begin a call. Raises `VocabularyMismatchError`: the table was made for a vocabulary of another size."""
        self._session = session
        if self._table is None:
            width = min(self.num_candidates, session.vocab_size)
            self._table = torch.full((session.vocab_size, width), -1, device="cpu")
            self._hits = torch.zeros(width + 1, dtype=torch.float32, device="cpu")
        if len(self.table) != session.vocab_size:
            raise VocabularyMismatchError(
                f"this table was made for a vocabulary of {len(self.table)} tokens and the model has "
                f"{session.vocab_size}: use one TokenRecycling per vocabulary"
            )

    def propose(self, max_depth: int) -> TreeBatch:
        """Trees from the table, by a heap if the policy allows it."""
        policy = self._policy
        if not can_use_heap(policy):
            return policy.grow(self, max_depth)
        table, probs = self.table.numpy(), self.rank_probs.tolist()  # NumPy reads rows in a fifth of the time.

        def children_of(token: int) -> list[tuple[float, int, int]]:
            return [(p, t, t) for p, t in zip(probs, table[token].tolist(), strict=True) if t >= 0]

        roots, sizes = self.root_tokens.tolist(), (policy.num_nodes, min(max_depth, policy.depth or max_depth))
        return TreeBatch.from_host_trees([grow_best_first(t, t, children_of, *sizes) for t in roots])

    def update(self, step: VerifiedStep) -> None:
        """Learn from a step, when the table is next read."""
        self._unread.append(step)
        # On accelerators a recorded pass may write its logits where it wrote these.
        if step.scores.logits.numel() > MANY_LOGITS or step.scores.logits.device.type != "cpu":
            self._read()
        while sum(unread.scores.logits.numel() for unread in self._unread) > MANY_LOGITS:
            self._unread.popleft()

    def _read(self) -> Tensor:
        """The table with the top k of every node's logits for its token; the last of nodes with one token counts."""
        table = self._table
        assert table is not None
        while self._unread:
            step = self._unread.popleft()
            top, tokens = step.top_tokens(table.shape[1]), step.trees.tokens[step.trees.parents != PADDING_PARENT]
            self._count_hits(table[tokens], top)
            table.numpy()[tokens.numpy()] = top.numpy()  # PyTorch does not say which of equal tokens counts.
        return table

    def __getstate__(self) -> dict[str, Any]:
        if self._table is not None:
            self._read()
        return vars(self)

    def select_rows(self, rows: Sequence[int]) -> None:
        """The table does not depend on rows."""

    def add_rows(self, num_rows: int) -> None:
        """See `ServingDrafter`."""

    def save(self, path: str | Path) -> None:
        """Write the table to a safetensors file.

        Raises:
            ConfigError: before the first call.
            CheckpointError: the file cannot be written.
        """
        write_tensors(path, FORMAT, pack_table(Table(self.table, self._hits)), {"vocab_size": str(len(self.table))})

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """A drafter with the table that `save` wrote. Raises `CheckpointError`: see `read_tensors`, `unpack_table`."""
        tensors, metadata = read_tensors(path, FORMAT, PACKED)
        return cls(table=unpack_table(tensors, metadata, path))

    @property
    def table(self) -> Tensor:
        """int64 [V, k], -1 where there is no candidate yet. Raises `ConfigError`: before the first call."""
        if self._table is None:
            raise ConfigError("there is no table before the first call of generation, which sets the vocabulary's size")
        return self._read()

    @property
    def rank_probs(self) -> Tensor:
        """float32 [k]: the running estimate that a rank holds the target's most likely token, not rising with rank."""
        if self._unread:
            self._read()
        *hits, trials = self._hits.tolist()
        probs = ((count + PRIOR_HITS * 0.5**rank) / (trials + PRIOR_TRIALS) for rank, count in enumerate(hits))
        return torch.tensor(list(accumulate(probs, min)), dtype=torch.float32, device="cpu")

    def expand(self, frontier: Frontier) -> Proposal:
        candidates = self.table[frontier.tokens]
        return Proposal(torch.where(candidates >= 0, self.rank_probs, 0.0), candidates.clamp(min=0))

    def _count_hits(self, known: Tensor, top: Tensor) -> None:
        """Count which rank held the target's most likely token, before the table is updated."""
        is_trial = known[:, 0] >= 0
        hits = (known == top[:, :1]) & is_trial.unsqueeze(-1)
        counts = self._hits + torch.cat([hits.sum(0), is_trial.sum(0, keepdim=True)])
        self._hits = counts / 2 if counts[-1] > MANY_TRIALS else counts
