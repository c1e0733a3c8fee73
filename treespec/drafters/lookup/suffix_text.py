"""Token texts and the positions where an ending occurs in them: the index of `SuffixLookup`.

A suffix trie is never built: its node for an ending is the positions where it occurs, its children the tokens after.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

SEPARATOR = -1
"""Before every text and after the last one: neither matches nor continuations cross it."""
MAX_OCCURRENCES = 32
"""How many unsorted occurrences of an ending are used, the most recent ones, and how many sorted ones, evenly spaced in
their order, in which similar contexts are neighbours. Bounds the time of a step."""
LOOK_BACK = 1024
"""How many unsorted occurrences of the last token, the most recent ones, are compared with longer endings."""


class Occurrences(NamedTuple):
    """Where an ending occurs: a slice of the sorted positions, and positions int64 ascending among the others."""

    start: int
    stop: int
    recent: np.ndarray

    @property
    def num_found(self) -> int:
        return self.stop - self.start + len(self.recent)


class SuffixText:
    """Concatenated texts in one growing array: an append costs amortised O(1).

    Positions before `num_sorted` are sorted by the tokens read backwards from them, so that the occurrences of an
    ending are one slice, found by binary search. The others are found by scans, fast up to some ten thousand tokens.
    """

    def __init__(self, tokens: Sequence[int] | np.ndarray = ()) -> None:
        """tokens: non-negative ids of a first text, and `SEPARATOR` between it and others."""
        self._buffer = np.full(max(2 * len(tokens), 64), SEPARATOR, dtype=np.int32)
        self._view = self._buffer.data
        self._length = 1
        self._order = np.empty(0, dtype=np.int32).data
        self.append(tokens)

    def __getstate__(self) -> dict[str, np.ndarray]:
        """The state without memoryviews, which cannot be copied or pickled."""
        return {"tokens": self.tokens[1:], "order": np.asarray(self._order)}

    def __setstate__(self, state: dict[str, np.ndarray]) -> None:
        self.__init__(state["tokens"])
        self._order = state["order"].data

    def __len__(self) -> int:
        """Positions in use, separators included."""
        return self._length

    @property
    def tokens(self) -> np.ndarray:
        """int32 [len(self)]: a separator, then the texts with separators between them."""
        return self._buffer[: self._length]

    @property
    def num_sorted(self) -> int:
        return len(self._order)

    def append(self, tokens: Sequence[int] | np.ndarray) -> None:
        """Continue the last text; a full array is doubled. The element after the end is always a separator."""
        end = self._length + len(tokens)
        if end >= len(self._buffer):
            grown = np.full(2 * end, SEPARATOR, dtype=np.int32)
            grown[: self._length] = self.tokens
            self._buffer, self._view = grown, grown.data
        self._buffer[self._length : end] = tokens
        self._length = end

    def ending(self, length: int) -> list[int]:
        """The last `length` tokens, fewer where the text is shorter."""
        return self._view[max(self._length - length, 1) : self._length].tolist()

    def sort(self, depth: int) -> None:
        """Sort all positions by the `depth` tokens before and at them, by prefix doubling in O(n log n log depth)."""
        rank = self.tokens.astype(np.int64) + 1
        width = 1
        while width < depth:
            before = np.concatenate([np.zeros(min(width, len(rank)), dtype=np.int64), rank[:-width]])
            rank = np.unique(rank * (rank.max() + 1) + before, return_inverse=True)[1]  # Ids < 2^31: no overflow.
            width *= 2
        self._order = np.argsort(rank, kind="stable").astype(np.int32).data

    def find(self, ending: Sequence[int], stop: int | None = None) -> list[Occurrences]:
        """Where the last token of `ending` occurs, where its last two tokens do, and so on, as long as they do.

        It has no more tokens than the depth of `sort`; only positions before `stop` count.
        """
        found: list[Occurrences] = []
        start, end = self._narrow(0, self.num_sorted, 0, ending[-1])
        unsorted = self._buffer[self.num_sorted : self._length if stop is None else stop]
        recent = np.flatnonzero(unsorted == ending[-1])[-LOOK_BACK:] + self.num_sorted
        for back, token in enumerate(ending[::-1]):
            if back:
                start, end = self._narrow(start, end, back, token)
                recent = recent[self._buffer[recent - back] == token]
            if start == end and not len(recent):
                break
            found.append(Occurrences(start, end, recent))
        return found

    def ends(self, occurrences: Occurrences) -> list[int]:
        """The positions that are used, the most recent unsorted ones first; see `MAX_OCCURRENCES`."""
        step = -(-(occurrences.stop - occurrences.start) // MAX_OCCURRENCES) or 1
        recent = occurrences.recent[: -MAX_OCCURRENCES - 1 : -1].tolist()
        return recent + self._order[occurrences.start : occurrences.stop : step].tolist()

    def children(self, ends: Sequence[int]) -> list[tuple[float, int, list[int]]]:
        """The tokens after the positions `ends`: (share, token, positions of the token), most frequent first.

        Equally frequent tokens are in the order of `ends`. Positions at the end of a text do not count.
        """
        view = self._view
        if len(ends) == 1:
            token = view[ends[0] + 1]
            return [] if token < 0 else [(1.0, token, [ends[0] + 1])]
        groups: dict[int, list[int]] = {}
        for end in ends:
            token = view[end + 1]
            if token in groups:
                groups[token].append(end + 1)
            elif token >= 0:
                groups[token] = [end + 1]
        total = sum(map(len, groups.values()))
        ranked = sorted(groups.items(), key=lambda item: -len(item[1]))
        return [(len(positions) / total, token, positions) for token, positions in ranked]

    def _narrow(self, start: int, end: int, back: int, token: int) -> tuple[int, int]:
        """The part of a slice of the sorted positions that have `token` `back` positions before them.

        Positions before the text are never read, as the separator at 0 ends every match.
        """
        if start == end:
            return start, end
        view = self._view
        order = self._order

        def earlier(position: int) -> int:
            return view[position - back]

        start = bisect_left(order, token, start, end, key=earlier)
        return start, bisect_right(order, token, start, end, key=earlier)


class TrieNode(NamedTuple):
    """A node of the suffix trie: positions of a text, and how many tokens before them match the text being continued.

    The more tokens match, the likelier the same token follows: share x length / (length + smoothing), docs/drafters.md.
    """

    text: SuffixText
    ends: list[int]
    length: int
    smoothing: float
    most: float = math.inf
    """The greatest length of a node below it."""

    def children(self) -> list[tuple[float, int, "TrieNode"]]:
        """(probability, token, child), most probable first."""
        text, ends, length, smoothing, most = self
        if length + 1 > most:
            return []
        scale = length / (length + smoothing)
        return [
            (scale * p, t, TrieNode(text, found, length + 1, smoothing, most)) for p, t, found in text.children(ends)
        ]


@cache
def greatest_score(length: int, num_levels: int, smoothing: float) -> float:
    """The greatest sum of path probabilities of a tree after a match: that of a path whose shares are all 1."""
    path_prob = 1.0
    score = 0.0
    for match in range(length, length + num_levels):
        path_prob *= match / (match + smoothing)
        score += path_prob
    return score
