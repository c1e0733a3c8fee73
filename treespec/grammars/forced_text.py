"""Text that must follow: a grammar often forces a text without forcing the tokens that spell it."""

from collections.abc import Container, Sequence
from heapq import heappop, heappush
from itertools import count, pairwise, starmap
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from treespec.grammars.processor import Constraint
from treespec.tree import ROOT_PARENT, HostTree

Spellings = Sequence[str | None]
"""Text of every token id, in the tokenizer's own spelling; None for added tokens like the end of text."""

MAX_CHOICES = 256
"""Where more tokens are allowed no text is looked for."""
PRIOR_HITS = (6.0, 2.0, 1.0, 1.0)
PRIOR_TRIALS = 10.0
"""Prior counts of the spelling of ten forced texts: six begin with the longest token, two with the next one, ...

SmolLM2 under the JSON schemas of `benchmarks.grammar`: 59, 20, 9 and 9 % of 532 at T = 0, 60, 22, 9 and 6 % at T = 1.
"""
NO_CONFIDENCE = 0.5
"""The assumed acceptance, given its parent's, of a node whose drafter gives no value."""

_KNOWN: WeakKeyDictionary[PreTrainedTokenizerBase, tuple[int, Spellings]] = WeakKeyDictionary()


def spellings_of(tokenizer: PreTrainedTokenizerBase) -> Spellings:
    """The spellings of a tokenizer's vocabulary, read once for each tokenizer and size."""
    size, known = len(tokenizer), _KNOWN.get(tokenizer)
    if known is not None and known[0] == size:
        return known[1]
    added = set(tokenizer.get_added_vocab().values())  # pyright: ignore[reportCallIssue, reportOptionalCall]
    vocabulary = tokenizer.get_vocab()
    spellings: list[str | None] = [None] * (max(vocabulary.values()) + 1)
    for text, token in vocabulary.items():
        spellings[token] = None if token in added else text
    _KNOWN[tokenizer] = (size, spellings)
    return spellings


def forced_tokens(allowed: Bool[Tensor, " V"], spellings: Spellings | None) -> list[int]:
    """The tokens that spell a text that must come, longest first; none where there is a choice.

    A text must come if every token that is allowed begins the longest one, as `n` and `na` begin `name`. Where more
    than one is allowed, all are likely and none is certain.
    """
    mask = allowed.cpu().numpy()
    tokens = np.flatnonzero(mask).tolist() if np.count_nonzero(mask) <= MAX_CHOICES else []
    if len(tokens) < 2 or spellings is None or tokens[-1] >= len(spellings):
        return tokens if len(tokens) == 1 else []
    texts = {text: token for token in tokens if (text := spellings[token])}
    longest = sorted(texts, key=len, reverse=True)
    is_forced = len(texts) == len(tokens) and all(starmap(str.startswith, pairwise(longest)))
    return [texts[text] for text in longest] if is_forced else []


class ForcedText:
    """Adds text that must follow to drafted trees; how the target spells such text is learned within a call."""

    def __init__(self, constraints: Sequence[Constraint], spellings: Spellings | None, ends: Container[int]) -> None:
        """`ends` are the tokens that end a text: nothing follows them."""
        self._constraints = constraints
        self._spellings = spellings
        self._ends = ends
        self._hits, self._trials = list(PRIOR_HITS), PRIOR_TRIALS

    def allowed(self, row: int, tokens: tuple[int, ...]) -> Bool[Tensor, " _"] | None:
        """The next tokens that all constraints allow, of any length; None where one of them forbids one of `tokens`."""
        found = [constraint.allowed(row, tokens) for constraint in self._constraints]
        masks = [mask for mask in found if mask is not None]
        if len(masks) < len(found):
            return None
        size = min(map(len, masks))
        return torch.stack([mask[:size] for mask in masks]).all(0) if len(masks) > 1 else masks[0]

    def follow(self, row: int, text: tuple[int, ...]) -> None:
        """Report to the constraints what a row has emitted."""
        for constraint in self._constraints:
            constraint.follow(row, text)

    def allows(self, row: int, tokens: tuple[int, ...], token: int) -> bool:
        mask = self.allowed(row, tokens)
        return mask is not None and token < len(mask) and bool(mask[token])

    def add_to(
        self, tree: HostTree, row: int, text: tuple[int, ...], num_nodes: int, max_depth: int, is_chain: bool = False
    ) -> HostTree:
        """The most valuable nodes of a tree and of the text that must follow its nodes; none that is forbidden.

        Args:
            tree: of selected children.
            row: of the caller's batch.
            text: what the row has emitted.
            num_nodes, max_depth: of the new tree at most, the root counted as one node of depth 0.
            is_chain: of every node the most valuable child only.
        """
        confidences = tree.confidences() if tree.values else [NO_CONFIDENCE] * len(tree.tokens)
        children: list[list[int]] = [[] for _ in tree.tokens]
        for node, parent in enumerate(tree.parents[1:], 1):
            children[parent].append(node)
        order = count()
        found = HostTree([], [], [])
        heap = [_Candidate(-1.0, next(order), tree.tokens[0], ROOT_PARENT, 0, ())]
        while heap and len(found.tokens) < num_nodes:
            best = heappop(heap)
            parent = len(found.tokens)
            found.tokens.append(best.token)
            found.parents.append(best.parent)
            found.values.append(-best.negative_value)
            if len(best.path) >= max_depth or (best.path and best.token in self._ends):
                continue
            known = (
                [(confidences[node], tree.tokens[node], node) for node in children[best.node]] if best.node >= 0 else []
            )
            options = self._options(row, (*text, *best.path), known)
            for share, token, node in sorted(options, reverse=True)[:1] if is_chain else options:
                path = (*best.path, token)
                heappush(heap, _Candidate(share * best.negative_value, next(order), token, parent, node, path))
        return found

    def learn(self, row: int, text: tuple[int, ...], emitted: Sequence[int]) -> None:
        """Count how the target spelled what had to follow: `emitted` after `text`."""
        for position, token in enumerate(emitted):
            mask = self.allowed(row, (*text, *emitted[:position]))
            tokens = [] if mask is None else forced_tokens(mask, self._spellings)
            if len(tokens) > 1:
                self._trials += 1
                if token in tokens[: len(self._hits)]:
                    self._hits[tokens.index(token)] += 1

    def _options(
        self, row: int, text: tuple[int, ...], known: Sequence[tuple[float, int, int]]
    ) -> list[tuple[float, int, int]]:
        """The children of a node: (confidence, token, number in the drafted tree or -1)."""
        mask = self.allowed(row, text)
        if mask is None:
            return []
        options = {token: (share, token, node) for share, token, node in known if token < len(mask) and mask[token]}
        tokens = forced_tokens(mask, self._spellings)
        rates = [1.0] if len(tokens) == 1 else [hits / self._trials for hits in self._hits]
        for rate, token in zip(rates, tokens, strict=False):
            share, _, node = options.get(token, (0.0, token, -1))
            options[token] = (max(rate, share), token, node)
        return list(options.values())


class _Candidate(NamedTuple):
    """A node that may be added next, the most valuable first; `node` is its number in the drafted tree, or -1."""

    negative_value: float
    order: int
    token: int
    parent: int
    node: int
    path: tuple[int, ...]
