"""Grammars along the branches of a tree: every path has its own state, so nothing depends on the order of calls."""

import sys
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool
from torch import Tensor
from transformers import LogitsProcessor

from treespec.errors import ConfigError

MAX_STATES = 2048
"""Forks that are kept; a state that was dropped is computed again from the text."""


@runtime_checkable
class GrammarState(Protocol):
    """Where a text stands in a grammar."""

    def fork(self) -> "GrammarState":
        """An independent copy."""
        ...

    def advance(self, token: int) -> None:
        """Go on by one token, one that `mask` allows."""
        ...

    def mask(self) -> Tensor:
        """The tokens allowed next, bool [V]; a shorter or longer one is filled with False or cut."""
        ...


class GrammarProcessor(LogitsProcessor):
    """A logits processor that allows what a grammar allows after the prompt, in trees and in plain `generate`.

    It is a function of the text: the states of the paths that were asked for last are kept, others are computed from
    the nearest kept one. One object serves any number of calls, one at a time.

    Args:
        grammar: an `xgrammar.CompiledGrammar`, an `llguidance.LLMatcher`, an `outlines_core.Index`, or a `GrammarState`
            of your own at the start of a text.

    Raises `ConfigError`: something else.
    """

    def __init__(self, grammar: Any) -> None:
        self._start = as_grammar_state(grammar)
        self._num_prompt: int | None = None
        self._prompt: Tensor | None = None
        self._known: OrderedDict[tuple[int, ...], tuple[GrammarState, Tensor] | None] = OrderedDict()

    def begin(self, num_prompt: int | None) -> None:
        """Say how many ids of every text are its prompt; None: those of the first call, as in plain decoding."""
        self._num_prompt = num_prompt
        self._prompt = None

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Scores [M, V] with -inf where the grammar forbids a token after ids int64 [M, L]."""
        start = self._length_of_prompt(input_ids)
        masks = [self._mask(tuple(ids[start:]), scores.shape[-1]) for ids in input_ids.tolist()]
        return scores.masked_fill(~torch.stack(masks).to(scores.device), -torch.inf)

    def allows(self, tokens: tuple[int, ...], token: int) -> bool:
        """Whether the grammar allows a token after these, which follow the prompt."""
        known = self._at(tokens)
        return known is not None and token < len(known[1]) and bool(known[1][token])

    def forced(self, text: Sequence[int], max_length: int) -> list[int]:
        """The tokens that must follow a text, as long as there is only one to choose from."""
        run: list[int] = []
        while len(run) < max_length and (known := self._at((*text, *run))) is not None:
            allowed = known[1].nonzero().flatten()
            if len(allowed) != 1:
                break
            run.append(int(allowed[0]))
        return run

    def _length_of_prompt(self, ids: Tensor) -> int:
        if self._num_prompt is not None:
            return self._num_prompt
        known = self._prompt
        if known is None or ids.shape[1] <= known.shape[1] or not torch.equal(ids[:, : known.shape[1]], known):
            self._prompt = known = ids.clone()
        return known.shape[1]

    def _mask(self, tokens: tuple[int, ...], size: int) -> Bool[Tensor, " V"]:
        """What is allowed after these tokens; anything after forbidden ones, which no verified text has."""
        known = self._at(tokens)
        if known is None:
            return torch.ones(size, dtype=torch.bool)
        return torch.nn.functional.pad(known[1], (0, size - len(known[1])))

    def _at(self, tokens: tuple[int, ...]) -> tuple[GrammarState, Tensor] | None:
        """State and mask after these tokens, None where the grammar forbids one of them."""
        if tokens in self._known:
            self._known.move_to_end(tokens)
            return self._known[tokens]
        if not tokens:
            self._known[tokens] = (self._start, self._start.mask())
            return self._known[tokens]
        num_known = next((n for n in range(len(tokens) - 1, 0, -1) if tokens[:n] in self._known), 0)
        known = self._at(tokens[:num_known])
        for n in range(num_known, len(tokens)):
            known = None if known is None else _after(*known, tokens[n])
            self._known[tokens[: n + 1]] = known
        while len(self._known) > MAX_STATES:
            self._known.popitem(last=False)
        return known


def _after(state: GrammarState, mask: Tensor, token: int) -> tuple[GrammarState, Tensor] | None:
    """State and mask after one token more, None where the mask forbids it."""
    if token >= len(mask) or not mask[token]:
        return None
    fork = state.fork()
    fork.advance(token)
    return fork, fork.mask()


@contextmanager
def after_prompt(processors: Iterable[Any], num_prompt: int) -> Iterator[None]:
    """Inside, the grammars among the processors begin after this many ids, whatever paths they are asked for."""
    grammars = [processor for processor in processors if isinstance(processor, GrammarProcessor)]
    for grammar in grammars:
        grammar.begin(num_prompt)
    try:
        yield
    finally:
        for grammar in grammars:
            grammar.begin(None)


def as_grammar_state(grammar: Any) -> GrammarState:
    """The state at the start of a text. Raises `ConfigError`: `grammar` is no grammar."""
    package, name = type(grammar).__module__.split(".")[0], type(grammar).__name__
    if (package, name) == ("xgrammar", "CompiledGrammar"):
        matcher = sys.modules["xgrammar"].GrammarMatcher(grammar)
        return XGrammarState(matcher, grammar.tokenizer_info.vocab_size)
    if name == "LLMatcher":
        return LLGuidanceState(grammar)
    if package == "outlines_core" and name == "Index":
        return OutlinesState(grammar, grammar.get_initial_state())
    if isinstance(grammar, GrammarState):
        return grammar
    raise ConfigError(
        f"expected an xgrammar CompiledGrammar, an llguidance LLMatcher, an outlines_core Index, or an object with "
        f"fork(), advance(token) and mask(), got {type(grammar).__name__}"
    )


@dataclass(frozen=True)
class XGrammarState:
    """A `GrammarState` by xgrammar."""

    matcher: Any
    vocab_size: int

    def fork(self) -> "XGrammarState":
        return XGrammarState(self.matcher.fork(), self.vocab_size)

    def advance(self, token: int) -> None:
        if not self.matcher.is_terminated():
            self.matcher.accept_token(token)

    def mask(self) -> Tensor:
        if self.matcher.is_terminated():
            return torch.ones(self.vocab_size, dtype=torch.bool)
        words = torch.full((1, (self.vocab_size + 31) // 32), -1, dtype=torch.int32)
        self.matcher.fill_next_token_bitmask(words)
        return _unpacked(words[0])[: self.vocab_size]


@dataclass(frozen=True)
class LLGuidanceState:
    """A `GrammarState` by llguidance."""

    matcher: Any

    def fork(self) -> "LLGuidanceState":
        return LLGuidanceState(self.matcher.deep_copy())

    def advance(self, token: int) -> None:
        if not self.matcher.is_stopped():
            self.matcher.consume_token(token)

    def mask(self) -> Tensor:
        return _unpacked(torch.frombuffer(bytearray(self.matcher.compute_bitmask()), dtype=torch.int32))


@dataclass
class OutlinesState:
    """A `GrammarState` by outlines-core."""

    index: Any
    state: int

    def fork(self) -> "OutlinesState":
        return OutlinesState(self.index, self.state)

    def advance(self, token: int) -> None:
        following = self.index.get_next_state(self.state, token)
        self.state = self.state if following is None else following

    def mask(self) -> Tensor:
        allowed = torch.tensor(self.index.get_allowed_tokens(self.state) or [], dtype=torch.int64)
        size = int(allowed.max()) + 1 if len(allowed) else 0
        return torch.zeros(size, dtype=torch.bool).index_fill_(0, allowed, True)


def _unpacked(words: Tensor) -> Tensor:
    """The bits of an int32 vector, lowest first, as a bool vector of 32 times its length."""
    return (words.unsqueeze(-1) >> torch.arange(32, dtype=torch.int32)).bitwise_and(1).bool().flatten()
