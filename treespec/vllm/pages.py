"""The target's states that heads read in vLLM: in pages next to vLLM's cache; heads' keys in one batched cache."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from treespec.heads.drafting.levels import LevelDrafter
from treespec.heads.drafting.unread_features import MAX_COLUMNS, Pairs, UnreadFeatures
from treespec.protocols import Session, VerifiedStep
from treespec.tree import Path, pad_rows
from treespec.vllm.layout import Step
from treespec.vllm.segments import StepTrees, ranges

MOST_READ = 2048
"""The most tokens before the end that the head reads of a request that joins with a longer text."""
MOST_WAITING = 4096
"""Tokens whose hidden states wait for a head that reads them; of more, the older half is forgotten."""
SHORT = 32
"""A request with more unread tokens is read in passes of its own, as the others would be padded to its length."""

Written = tuple[Float[Tensor, "M Y"], np.ndarray, np.ndarray]
"""States of M tokens, each with its request's block table, int64 [M, columns], and its position, int64 [M]."""


class FeaturePages:
    """The head's features of every position in vLLM's cache, by the cache's own slots.

    Every pass leaves its hidden states, which become features when a head reads. So they are there for prompts read in
    chunks, for blocks of the prefix cache, and for requests that come back after a preemption. Where nothing is drafted
    for long, what waits costs no product and no look at its tokens, until it is forgotten with all earlier features.

    Attributes:
        tables: int64 [B, columns], the block tables of the drafter's rows.
    """

    def __init__(
        self, num_blocks: int, block_size: int, like: Float[Tensor, "H _"], fuse: Callable[[Tensor], Tensor]
    ) -> None:
        """like: a weight with features of size H; `fuse` makes features [M, H] of the states of a pass [M, Y]."""
        self._features = like.new_zeros(num_blocks * block_size, like.shape[0])
        self._block_size, self._fuse_states = block_size, fuse
        self.tables = np.zeros((0, 1), dtype=np.int64)
        self._is_known = np.zeros(num_blocks * block_size, dtype=bool)
        self._waiting: list[tuple[int, Callable[[], Written]]] = []
        self._num_waiting = 0

    def write(self, num_tokens: int, written: Callable[[], Written]) -> None:
        """Keep the states of a pass over this many tokens, which are asked for when a head reads."""
        self._waiting.append((num_tokens, written))
        self._num_waiting += num_tokens
        if self._num_waiting > MOST_WAITING:
            self._forget()

    def _forget(self) -> None:
        """Keep the last passes, half of what may wait but at least one: slots of the others may have been written."""
        self._is_known[:] = False  # The passes dropped may have written to any slot.
        while self._num_waiting > MOST_WAITING // 2 and len(self._waiting) > 1:
            self._num_waiting -= self._waiting.pop(0)[0]

    def first_known(self, row: int, first: int, end: int) -> int:
        """The first position from which on up to before `end` a row's features are all there, at least `first`."""
        self._fuse()
        is_known = self._is_known[self._slots(self.tables[[row] * (end - first)], np.arange(first, end))]
        return first + int(max(np.flatnonzero(~is_known) + 1, default=0))

    def _fuse(self) -> None:
        if not self._waiting:
            return
        passes = [written() for _, written in self._waiting]
        self._waiting, self._num_waiting = [], 0
        with torch.no_grad():
            features = self._fuse_states(torch.cat([states for states, _, _ in passes]).to(self._features))
        slots = np.concatenate([self._slots(tables, positions) for _, tables, positions in passes])
        # A slot may have been written twice, by a request that has left: the last one counts.
        slots, last = np.unique(slots[::-1], return_index=True)
        self._features[self._as_tensor(slots)] = features[self._as_tensor(len(features) - 1 - last)]
        self._is_known[slots] = True

    def read(self, rows: Sequence[int], firsts: Sequence[int], ends: Sequence[int]) -> list[Float[Tensor, "M H"]]:
        """Each of these rows' features of all positions from `firsts` up to before `ends`."""
        self._fuse()
        counts = [end - first for first, end in zip(firsts, ends, strict=True)]
        positions = np.concatenate([np.arange(*bounds) for bounds in zip(firsts, ends, strict=True)])
        slots = self._slots(self.tables[np.repeat(rows, counts)], positions)
        return list(self._features[self._as_tensor(slots)].split(counts))

    def _slots(self, tables: np.ndarray, positions: np.ndarray) -> np.ndarray:
        blocks = tables[np.arange(len(positions)), positions // self._block_size].astype(np.int64)
        return blocks * self._block_size + positions % self._block_size

    def _as_tensor(self, numbers: np.ndarray) -> Int[Tensor, "M"]:
        return torch.from_numpy(numbers).to(self._features.device, non_blocking=True)


class PagedFeatures(UnreadFeatures):
    """Which positions a head has not read yet, of rows that join and leave; see `UnreadFeatures`."""

    def __init__(self, session: Session, pages: FeaturePages) -> None:
        super().__init__(session, ())
        self._pages = pages
        self.firsts: list[int] = []
        """The first unread position of every row."""

    @property
    def counts(self) -> list[int]:
        """Unread pairs of every row; the last token has no feature yet."""
        lengths = self._session.history.lengths
        return [length - 1 - first for length, first in zip(lengths, self.firsts, strict=True)]

    @property
    def reaches_roots(self) -> bool:
        return min(self.counts, default=0) > 0

    def add(self, step: VerifiedStep) -> None:
        """The pages have the features already."""

    def take(self) -> list[Pairs]:
        return self._take(list(range(len(self.firsts))), [length - 1 for length in self._session.history.lengths])

    def take_row(self, row: int) -> list[Pairs]:
        """One row's pairs but the last, as a batch of one."""
        return self._take([row], [self._session.history.lengths[row] - 2])  # The last: with the other rows' pairs.

    def pass_over_gaps(self) -> None:
        """Begin after what the pages have forgotten: a row's keys of earlier positions stay as they are."""
        for row, (first, count) in enumerate(zip(self.firsts, self.counts, strict=True)):
            gap = self._pages.first_known(row, first, first + count) - first
            self.firsts[row], self.offsets[row] = first + gap, self.offsets[row] + gap  # Keys have no holes.

    def select_rows(self, rows: Sequence[int]) -> None:
        self.firsts = [self.firsts[row] for row in rows]
        self.offsets = [self.offsets[row] for row in rows]

    def add_rows(self, num_rows: int) -> None:
        """The history's last rows are new."""
        lengths = self._session.history.lengths[len(self.firsts) :]
        firsts = [max(length - 1 - MOST_READ, 0) for length in lengths]
        self.firsts += firsts
        self.offsets += firsts

    def _take(self, rows: Sequence[int], ends: Sequence[int]) -> list[Pairs]:
        firsts = [self.firsts[row] for row in rows]
        states = pad_sequence(self._pages.read(rows, firsts, ends), batch_first=True)
        texts = [self._session.history.row(row) for row in rows]
        tokens = [text[a + 1 : b + 1].tolist() for text, a, b in zip(texts, firsts, ends, strict=True)]
        padded = torch.tensor(pad_rows(tokens, 0), device="cpu")
        for row, end in zip(rows, ends, strict=True):
            self.firsts[row] = end
        parts = []
        for start in range(0, padded.shape[1], MAX_COLUMNS):
            columns = slice(start, start + MAX_COLUMNS)
            counts = [min(max(len(row) - start, 0), MAX_COLUMNS) for row in tokens]
            parts.append(Pairs(states[:, columns], padded[:, columns], counts))
        return parts


class OnPages(LevelDrafter[Any]):
    """A `LevelDrafter` for rows that join and leave, which reads its features from pages.

    Attributes:
        pages: where the features are; made before `start`.
        share: of the target's time that a pass is at first expected to take.
    """

    pages: FeaturePages
    share = 0.05
    _unread: PagedFeatures  # pyright: ignore[reportIncompatibleVariableOverride]

    def make_pages(self, num_blocks: int, block_size: int) -> None:
        """Pages for a cache of this many blocks."""
        self.pages = FeaturePages(num_blocks, block_size, *self._features)

    @property
    @abstractmethod
    def _features(self) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """See `FeaturePages`."""

    def start(self, session: Session) -> None:
        super().start(session)
        self._unread = PagedFeatures(session, self.pages)

    def add_rows(self, num_rows: int) -> None:
        """See `ServingDrafter`."""
        self._keys.add_rows(num_rows)
        self._unread.add_rows(num_rows)

    def keep(self, states: Sequence[Tensor], step: Step, tables: np.ndarray) -> None:
        """Keep what the head reads of a pass, whose hidden states are in vLLM's order of layers, of tokens that stay.

        `tables`: the requests' block tables, int64 [B, columns].
        """
        layers, tables = sorted(set(self.hidden_layers)), tables[: len(step.roots)].copy()  # vLLM reuses the array.
        # Captured graphs write the next pass's states where these are.
        joined = torch.cat([states[layers.index(layer)] for layer in self.hidden_layers], -1)

        def written() -> Written:
            paths = [verdict.path for verdict in step.verdicts] or [(0,)] * len(step.roots)
            columns, positions, numbers = kept(step.flat, paths)
            return joined[torch.from_numpy(columns).to(joined.device)], tables[numbers], positions

        self.pages.write(len(joined), written)

    def num_unread(self, length: int, row: int | None) -> int:
        """Tokens that a draft for a text of this length reads first; `row`: the drafter's, None of one that joins."""
        return min(length - 1, MOST_READ) if row is None else length - 1 - self._unread.firsts[row]

    def _catch_up(self) -> Float[Tensor, "B 1 _"]:
        self._unread.pass_over_gaps()
        counts = self._unread.counts
        if len(counts) > 1:  # A single row is never padded.
            for row in np.flatnonzero(np.array(counts) > SHORT).tolist():
                self._read_alone(row)
        return super()._catch_up()

    def _read_alone(self, row: int) -> None:
        """Read all unread tokens of a row but the last."""
        keys = self._keys.copy_row(row)
        for pairs in self._unread.take_row(row):
            self._read_committed(pairs, keys, [self._unread.offsets[row]])
        self._keys.replace_row(row, keys)


def kept(step: StepTrees, paths: Sequence[Path]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Column, position and request of all tokens that stay in the texts, given the accepted paths, roots first."""
    before = step.roots - step.first_tokens
    nodes = np.array([node for path in paths for node in path], dtype=np.int64)
    counts = np.array(list(map(len, paths)))
    rows = np.repeat(np.arange(len(paths)), before + counts)
    number = ranges(before + counts)
    columns = step.first_tokens[rows] + number
    columns[number >= before[rows]] = np.repeat(step.roots, counts) + nodes
    return columns, (step.positions - before)[rows] + number, rows
