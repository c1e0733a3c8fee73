"""Constraints along the branches of a tree: every path has its own state, so nothing depends on the order of calls."""

from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from treespec.grammars.after import FREE, AfterState, marker_of
from treespec.grammars.states import GrammarState, as_grammar_state
from treespec.hf.generation.processors import BranchProcessor

MAX_STATES = 2048
"""Forks that are kept; a state that was dropped is computed again from the text."""


class Constraint(BranchProcessor):
    """A processor that forbids tokens, and what it says about single texts, for drafts."""

    @abstractmethod
    def allowed(self, row: int, tokens: Sequence[int]) -> Tensor | None:
        """The tokens allowed next, bool of any length, after `tokens`, which follow the prompt of the caller's `row`.

        None: one of `tokens` is forbidden already.
        """

    def follow(self, row: int, emitted: tuple[int, ...]) -> None:
        """A row has emitted these tokens, of which other processors may have forced some that were forbidden.

        By default nothing is done: a grammar has no state after what it forbids.
        """


class PathStates:
    """The states of texts that begin alike; those asked for last are kept, others computed from the nearest one."""

    def __init__(self, start: GrammarState) -> None:
        self._start = start
        self._known: OrderedDict[tuple[int, ...], tuple[GrammarState, Tensor] | None] = OrderedDict()
        self._emitted: tuple[int, ...] = ()

    def follow(self, emitted: tuple[int, ...]) -> None:
        """Continue after emitted tokens, which begin with those of the call before, also where one was forbidden."""
        news = range(len(self._emitted) + 1, len(emitted) + 1)
        if any(self._known.get(emitted[:n], self._start) is None for n in news):
            self._known = OrderedDict((text, known) for text, known in self._known.items() if known is not None)
        self._emitted = emitted

    def mask(self, tokens: tuple[int, ...]) -> Tensor | None:
        """The tokens allowed after these, bool of any length; None where one of these is forbidden."""
        known = self._at(tokens)
        return None if known is None else known[1]

    def _at(self, tokens: tuple[int, ...]) -> tuple[GrammarState, Tensor] | None:
        """State and mask after these tokens, None where one of them is forbidden."""
        if tokens in self._known:
            self._known.move_to_end(tokens)
            return self._known[tokens]
        if not tokens:
            self._known[tokens] = (self._start, self._start.mask())
            return self._known[tokens]
        num_known = next((n for n in range(len(tokens) - 1, 0, -1) if tokens[:n] in self._known), 0)
        known = self._at(tokens[:num_known])
        for n in range(num_known, len(tokens)):
            is_emitted = tokens[: n + 1] == self._emitted[: n + 1]
            known = None if known is None else _after(*known, tokens[n], is_emitted)
            self._known[tokens[: n + 1]] = known
        while len(self._known) > MAX_STATES:
            self._known.popitem(last=False)
        return known


def _after(state: GrammarState, mask: Tensor, token: int, is_emitted: bool) -> tuple[GrammarState, Tensor] | None:
    """State and mask after one token more, None where the mask forbids it and it was not emitted nevertheless."""
    if not is_emitted and (token >= len(mask) or not mask[token]):
        return None
    fork = state.fork()
    fork.advance(token)
    return fork, fork.mask()


class GrammarProcessor(Constraint):
    """A logits processor that allows what a grammar allows after the prompt, in trees and in plain `generate`.

    It is a function of the text, see `PathStates`. One object serves any number of calls, one at a time.

    Args:
        grammar: an `xgrammar.CompiledGrammar`, an `llguidance.LLMatcher`, an `outlines_core.Index`, a `TokenEnforcer`
            of lm-format-enforcer (see `token_enforcer`), or a `GrammarState` of your own at the start of a text.
        after: a text or token ids that the grammar begins after, such as "</think>": everything is allowed up to the
            token that completes it for the first time in the new tokens; None: the grammar begins at once.
        tokenizer: reads the tokens where `after` is a text.

    Raises `ConfigError`: something else; a text without a tokenizer.
    """

    is_row_free = True

    def __init__(self, grammar: Any, *, after: str | Sequence[int] | None = None, tokenizer: Any = None) -> None:
        state = as_grammar_state(grammar)
        self._states = PathStates(state if after is None else AfterState(state, marker_of(after, tokenizer)))
        self._num_prompt: int | None = None
        self._prompt: Tensor | None = None

    def begin(self, num_prompt: int | None) -> None:
        """Say how many ids of every text are its prompt; None: those of the first call, as in plain decoding."""
        self._num_prompt = num_prompt
        self._prompt = None

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Scores [M, V] with -inf where the grammar forbids a token after ids int64 [M, L]."""
        start = self._length_of_prompt(input_ids)
        found = [self._states.mask(tuple(ids[start:])) for ids in input_ids.tolist()]
        if all(mask is FREE for mask in found):
            return scores
        masks = [resized(mask, scores.shape[-1]) for mask in found]
        return scores.masked_fill(~torch.stack(masks).to(scores.device), -torch.inf)

    def of_row(self, ids: Tensor, scores: Tensor, row: int) -> Tensor:
        return self(ids, scores)

    def allowed(self, row: int, tokens: Sequence[int]) -> Tensor | None:
        """See `Constraint`; the same for every row."""
        return self._states.mask(tuple(tokens))

    def _length_of_prompt(self, ids: Tensor) -> int:
        if self._num_prompt is not None:
            return self._num_prompt
        known = self._prompt
        if known is None or ids.shape[1] <= known.shape[1] or not torch.equal(ids[:, : known.shape[1]], known):
            self._prompt = known = ids.clone()
        return known.shape[1]


def resized(mask: Tensor | None, size: int) -> Bool[Tensor, " V"]:
    """A mask filled with False or cut to `size`; without one everything, for no verified text gets there."""
    if mask is None:
        return torch.ones(size, dtype=torch.bool, device="cpu")
    return torch.nn.functional.pad(mask, (0, size - len(mask)))
