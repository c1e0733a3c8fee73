"""Suffix lookup: what followed the last occurrences of the text's longest repeated ending drafts the tree.

With one occurrence this is prompt lookup (Saxena 2023); several occurrences that went on differently make a tree.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from treespec.drafters.shared import (
    Shape,
    can_use_heap,
    grow_on_host,
    own_policy,
    policy_of_call,
    stack_trees,
    tell_policy,
    to_device,
)
from treespec.errors import ConfigError
from treespec.policies.checks import check_count
from treespec.protocols import Proposal, Session, VerifiedStep
from treespec.tree import PADDING_PARENT, ROOT_PARENT, TreeBatch

MAX_OCCURRENCES = 32
"""Only the most recent occurrences are followed: they bound the time of a step and say most about what comes next."""


class TrieNode:
    """Continuations counted: `count` occurrences came through here."""

    __slots__ = ("children", "count")

    def __init__(self) -> None:
        self.count = 0
        self.children: dict[int, TrieNode] = {}

    def ranked(self) -> list[tuple[float, int, TrieNode]]:
        """(probability, token, node) of the children, most frequent first; of equal ones the most recent first.

        Occurrences so recent that the text ends before they went on do not count.
        """
        total = sum(child.count for child in self.children.values())
        ranked = sorted(self.children.items(), key=lambda item: -item[1].count)
        return [(child.count / total, token, child) for token, child in ranked]


class SuffixIndex:
    """The tokens of one row, and where its ending occurred before.

    Tokens lie in one growing array: narrowing the positions of the last token down, one token further back at a time,
    takes a few vectorised scans, which at 8,000 tokens is faster than any index kept in Python, and costs no memory.
    """

    def __init__(self, tokens: Sequence[int]) -> None:
        self._buffer = np.array(tokens, dtype=np.int64)
        self._length = len(tokens)

    @property
    def tokens(self) -> np.ndarray:
        """int64 [length]."""
        return self._buffer[: self._length]

    def append(self, tokens: Sequence[int]) -> None:
        """Add the tokens that came; the buffer doubles when it is full."""
        end = self._length + len(tokens)
        if end > len(self._buffer):
            grown = np.empty(2 * end, dtype=np.int64)
            grown[: self._length] = self.tokens
            self._buffer = grown
        self._buffer[self._length : end] = tokens
        self._length = end

    def occurrences(self, max_match: int, min_match: int = 1) -> tuple[int, np.ndarray]:
        """Where the longest repeated ending of at most `max_match` tokens ended before.

        Returns:
            Its length and the earlier end positions, int64 ascending; (0, empty) when fewer than `min_match` tokens
            match.
        """
        tokens = self.tokens
        found, length = np.flatnonzero(tokens[:-1] == tokens[-1]), 1
        while len(found) and length < max_match:
            # A position before the text would wrap around to its end.
            longer = found[found >= length]
            longer = longer[tokens[longer - length] == tokens[-1 - length]]
            if not len(longer):
                break
            found, length = longer, length + 1
        return (length, found) if len(found) and length >= min_match else (0, found[:0])

    def continuations(self, max_match: int, min_match: int, max_depth: int) -> TrieNode:
        """What followed the occurrences of the longest repeated ending, as a trie no deeper than `max_depth`."""
        root = TrieNode()
        _, ends = self.occurrences(max_match, min_match)
        for end in ends[: -MAX_OCCURRENCES - 1 : -1].tolist():
            node = root
            for token in self.tokens[end + 1 : end + 1 + max_depth].tolist():
                if token not in node.children:
                    node.children[token] = TrieNode()
                node = node.children[token]
                node.count += 1
        return root


class SuffixLookup:
    """Drafts by looking up the text's own ending in the prompt and the output; learns nothing across calls.

    A child's probability is the share of the occurrences that went on with it.

    Args:
        max_match: the longest ending looked up; ending at the same `max_match` tokens counts as equally good.
        min_match: shorter repeated endings propose nothing.
        policy: how trees are shaped; None takes the call's policy.

    Raises:
        ConfigError, InvalidTreeError: a number that is not a positive int, or `min_match` above `max_match`; see also
            `as_policy`.
    """

    def __init__(self, max_match: int = 16, min_match: int = 1, policy: Shape | None = None) -> None:
        self._max_match, self._min_match = check_count("max_match", max_match), check_count("min_match", min_match)
        if min_match > max_match:
            raise ConfigError(f"min_match is {min_match} and max_match {max_match}: nothing would ever be looked up")
        self._own_policy = own_policy(policy)

    def start(self, session: Session) -> None:
        """Read the prompts: one index per row."""
        self._session = session
        self._policy = policy_of_call(self._own_policy, session)
        history = session.history
        self._rows = [SuffixIndex(history.tokens(b).tolist()) for b in range(history.num_rows)]

    def propose(self, max_depth: int) -> TreeBatch:
        """Trees of what followed earlier occurrences of each row's ending; roots alone where there are none."""
        policy = self._policy
        depth = min(max_depth, policy.max_nodes - 1)
        tries = [row.continuations(self._max_match, self._min_match, depth) for row in self._rows]
        roots = [int(row.tokens[-1]) for row in self._rows]
        if can_use_heap(policy):
            trees = [grow_on_host(policy, *row, TrieNode.ranked, depth) for row in zip(roots, tries, strict=True)]
            return stack_trees(trees, self._session.device)
        source = TrieSource(roots, tries, self._session.is_sampling)
        return to_device(policy.grow(source, max_depth), self._session.device)

    def commit(self, step: VerifiedStep) -> None:
        """Append the emitted tokens to every row's index."""
        tell_policy(self._own_policy, step)
        for row, tokens in zip(self._rows, step.emitted, strict=True):
            row.append(tokens)

    def select_rows(self, rows: Sequence[int]) -> None:
        """Keep only these rows, in this order."""
        self._rows = [self._rows[b] for b in rows]


class TrieSource:
    """A `DraftSource` over one trie per row, on the host."""

    def __init__(self, roots: Sequence[int], tries: Sequence[TrieNode], is_sampling: bool) -> None:
        self.root_tokens = torch.tensor(roots)
        self.is_sampling = is_sampling
        self.generator = torch.Generator()
        self._roots = tries
        self._expanded: list[list[TrieNode | None]] = [[] for _ in tries]

    def expand(self, tokens: Tensor, parents: Tensor) -> Proposal:
        """See `DraftSource`."""
        ranked: list[list[list[tuple[float, int, TrieNode]]]] = []
        for row, known in enumerate(self._expanded):
            pairs = zip(tokens[row].tolist(), parents[row].tolist(), strict=True)
            nodes = [self._find(row, token, parent) for token, parent in pairs]
            known += nodes
            ranked.append([[] if node is None else node.ranked() for node in nodes])
        width = max(max(len(children) for children in level) for level in ranked)
        probs, candidates = torch.zeros(*tokens.shape, max(width, 1)), torch.zeros(*tokens.shape, max(width, 1)).long()
        for row, level in enumerate(ranked):
            for slot, children in enumerate(level):
                for rank, (prob, token, _) in enumerate(children):
                    probs[row, slot, rank], candidates[row, slot, rank] = prob, token
        return Proposal(probs, candidates)

    def _find(self, row: int, token: int, parent: int) -> TrieNode | None:
        if parent == PADDING_PARENT:
            return None
        above = self._expanded[row][parent] if parent != ROOT_PARENT else None
        return self._roots[row] if above is None else above.children[token]
