"""A text's state in a grammar, for each package that has grammars."""

import copy
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from treespec.errors import ConfigError


@runtime_checkable
class GrammarState(Protocol):
    """A text's state in a grammar."""

    def fork(self) -> Self:
        """An independent copy; by default one with the same attributes, for states that only replace theirs."""
        return copy.copy(self)

    def advance(self, token: int) -> None:
        """Continue by one token, one that `mask` allows."""
        ...

    def mask(self) -> Tensor:
        """The tokens allowed next, bool [V]; a shorter or longer one is filled with False or cut."""
        ...


def as_grammar_state(grammar: Any) -> GrammarState:
    """The state at the start of a text. Raises `ConfigError`: `grammar` is not a grammar."""
    package, name = type(grammar).__module__.split(".")[0], type(grammar).__name__
    if (package, name) == ("xgrammar", "CompiledGrammar"):
        matcher = sys.modules["xgrammar"].GrammarMatcher(grammar)
        return XGrammarState(matcher, grammar.tokenizer_info.vocab_size)
    if name == "LLMatcher":
        return LLGuidanceState(grammar)
    if package == "outlines_core" and name == "Index":
        return OutlinesState(grammar, grammar.get_initial_state())
    if (package, name) == ("lmformatenforcer", "TokenEnforcer"):
        return EnforcerState.at_start(grammar)
    if isinstance(grammar, GrammarState):
        return grammar
    raise ConfigError(
        "expected an xgrammar CompiledGrammar, an llguidance LLMatcher, an outlines_core Index, a TokenEnforcer of "
        "lm-format-enforcer (treespec.grammars.token_enforcer makes one), or an object with fork(), advance(token) and "
        f"mask(), got {type(grammar).__name__}"
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
            return torch.ones(self.vocab_size, dtype=torch.bool, device="cpu")
        words = torch.full((1, (self.vocab_size + 31) // 32), -1, dtype=torch.int32, device="cpu")
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
class OutlinesState(GrammarState):
    """A `GrammarState` by outlines-core."""

    index: Any
    state: int

    def advance(self, token: int) -> None:
        following = self.index.get_next_state(self.state, token)
        self.state = self.state if following is None else following

    def mask(self) -> Tensor:
        return mask_of(self.index.get_allowed_tokens(self.state) or [])


@dataclass
class EnforcerState(GrammarState):
    """A `GrammarState` by lm-format-enforcer.

    The enforcer keeps every text that it was asked about. Here it knows one at a time, the parent, as the empty text:
    so nothing grows, and two prompts of which one continues the other are not mixed up.
    """

    enforcer: Any
    known: Any

    @classmethod
    def at_start(cls, enforcer: Any) -> "EnforcerState":
        own = copy.copy(enforcer)
        start: list[int] = []
        own.prefix_states = {}
        own.get_allowed_tokens(start)
        return cls(own, own.prefix_states[tuple(start)])

    def advance(self, token: int) -> None:
        states: dict[tuple[int, ...], Any] = {(): self.known}
        self.enforcer.prefix_states = states
        self.enforcer.get_allowed_tokens([token])
        self.known = states[(token,)]

    def mask(self) -> Tensor:
        allowed = self.known.allowed_tokens
        return _unpacked(allowed.allowed_tokens) if allowed.use_bitmask else mask_of(allowed.allowed_tokens)


def token_enforcer(parser: Any, tokenizer: PreTrainedTokenizerBase, end_tokens: Iterable[int] | None = None) -> Any:
    """A `TokenEnforcer` of lm-format-enforcer, whose own integration does not import with transformers 5.

    Args:
        parser: a `CharacterLevelParser` of lm-format-enforcer (`JsonSchemaParser`, `RegexParser`, ...).
        tokenizer: the target's.
        end_tokens: the ids that may end the text; None: the tokenizer's end of text.

    Raises `ConfigError`: no parser, or no id that can end the text.
    """
    from lmformatenforcer import CharacterLevelParser, TokenEnforcer, TokenEnforcerTokenizerData

    ends: list[Any] = [tokenizer.eos_token_id] if end_tokens is None else list(end_tokens)
    if not isinstance(parser, CharacterLevelParser) or not all(isinstance(end, int) for end in ends) or not ends:
        raise ConfigError(
            "token_enforcer needs a CharacterLevelParser and a tokenizer with an end of text (or end_tokens=), got "
            f"{type(parser).__name__} and the ends {ends}"
        )
    # A token's text is what it adds after another token, for some decoders drop the first space.
    before = tokenizer.encode("0", add_special_tokens=False)[-1:]
    regular = [token for token in range(len(tokenizer)) if token not in {*tokenizer.all_special_ids, *ends}]
    alone = tokenizer.batch_decode([[token] for token in regular])
    after = [text[1:] for text in tokenizer.batch_decode([[*before, token] for token in regular])]
    words = [len(longer) > len(text) for longer, text in zip(after, alone, strict=True)]

    def decode(tokens: list[int]) -> str:
        return str(tokenizer.decode(tokens)).rstrip("\ufffd")

    tokens = list(zip(regular, after, words, strict=True))
    return TokenEnforcer(TokenEnforcerTokenizerData(tokens, decode, ends, False, len(tokenizer)), parser)


def mask_of(allowed: Iterable[int]) -> Tensor:
    """A bool vector as long as the greatest of these tokens needs, True at them.

    Raises `ConfigError`: a negative id, which would count from the end of a vector of another length.
    """
    ids = allowed if isinstance(allowed, Tensor) else list(allowed)
    tokens = torch.as_tensor(ids, dtype=torch.int64, device="cpu")
    if bool((tokens < 0).any()):
        raise ConfigError(f"tokens that are allowed next must be ids from 0 on, got {int(tokens.min())}")
    size = int(tokens.max()) + 1 if len(tokens) else 0
    return torch.zeros(size, dtype=torch.bool, device="cpu").index_fill_(0, tokens, True)


def _unpacked(words: Tensor) -> Tensor:
    """The bits of an int32 vector, lowest first, as a bool vector of 32 times its length."""
    bits = np.unpackbits(words.contiguous().numpy().view(np.uint8), bitorder="little")
    return torch.from_numpy(bits.view(np.bool_))
