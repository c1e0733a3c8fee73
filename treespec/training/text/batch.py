"""One batch of text that a model writes itself.

The model starts from the bare user turn of its own chat template, or from a message's opening; it writes the user's
message too, then the answer.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import NamedTuple

import torch
from torch import Tensor

from treespec.checks import check_count, check_number
from treespec.drafters.model.token_map import left_padded
from treespec.errors import ConfigError
from treespec.protocols import CausalScorer
from treespec.sampling import inverse_cdf
from treespec.training.text.chat import Turns
from treespec.training.text.texts import Texts
from treespec.tree import ROOT_PARENT

LEAVE_SHARE = 8
"""Finished rows leave the batch once they are one row in eight, as every removal copies the cache."""
SEED_STRIDE = 1_000_003
"""More than a run's batches, so that runs of neighbouring seeds share no batch's seed."""


@dataclass(frozen=True)
class Writing:
    """How text is written.

    Args:
        message_temperature: of the user's messages.
        temperatures: of the answers, in turn; 0 is greedy.
        max_message: the longest message in tokens, its opening included; longer ones are cut, but openings are not.
        max_length: the longest text in tokens, the template's included.
        num_candidates: how many of the most probable tokens are kept after every token.

    Raises `ConfigError`: a count that is not a positive int, texts of one token, a negative temperature or none.
    """

    message_temperature: float = 0.9
    temperatures: tuple[float, ...] = (0.0, 0.7, 1.0)
    max_message: int = 96
    max_length: int = 320
    batch_size: int = 64
    num_candidates: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("max_message", "max_length", "batch_size", "num_candidates"):
            check_count(name, getattr(self, name))
        if self.max_length < 2:
            raise ConfigError("max_length must be at least 2, as a text begins with a token of the template, got 1")
        check_count("seed", self.seed, least=0)
        if not self.temperatures:
            raise ConfigError("temperatures must hold at least one, got none")
        for temperature in (self.message_temperature, *self.temperatures):
            check_number("every temperature", temperature, lambda value: 0 <= value < math.inf, "be finite and >= 0")


class Message(NamedTuple):
    """A user's message as ids. If it is open, the model continues and ends it."""

    tokens: Sequence[int] = ()
    is_open: bool = True


@dataclass
class _Row:
    """One text that is being written."""

    tokens: list[int]
    temperature: float
    num_message: int | None  # Tokens of the user's message so far; None once the answer has begun.
    top: list[Tensor]  # The most probable next tokens after every token but the last.
    forced: list[int] = field(default_factory=list)  # The template's tokens that come next; they replace drawn ones.
    num_cached: int = 0  # Tokens that the model has read; a finished row continues reading until it leaves.
    is_done: bool = False

    def append(self, token: int, top: Tensor, turns: Turns, ends: frozenset[int], writing: Writing) -> None:
        """Append the drawn token, or the template's token that replaces it."""
        self.top.append(top)
        if self.num_message is not None and (token in ends or self.num_message >= writing.max_message):
            self.forced = list(turns.reply)
            self.num_message = None
        if self.forced:
            self.tokens.append(self.forced.pop(0))
        else:
            self.tokens.append(token)
            self.num_message = None if self.num_message is None else self.num_message + 1
            self.is_done = self.num_message is None and token in ends
        self.is_done |= len(self.tokens) >= writing.max_length


@torch.no_grad()
def write_batch(
    scorer: CausalScorer,
    turns: Turns,
    ends: Sequence[int],
    messages: Sequence[Message],
    writing: Writing,
    number: int = 0,
    on_tokens: Callable[[int], object] = lambda _: None,
    is_enough: Callable[[Sequence[int]], bool] = lambda _: False,
) -> Texts:
    """Write one text per message in one batch; `Message()` lets the model write its own.

    Args:
        ends: ids that end an answer.
        number: of the batch, from which its seed follows.
        on_tokens: called with the number of tokens that each pass added.
        is_enough: called with a text's tokens so far; where it is true the text ends.
    """
    generator = torch.Generator(scorer.device).manual_seed(writing.seed * SEED_STRIDE + number)
    starts = zip(messages, cycle(writing.temperatures), strict=False)
    texts = [_start(message, turns, temperature, writing) for message, temperature in starts]
    message_ends, answer_ends = frozenset([*ends, *turns.reply[:1]]), frozenset(ends)
    rows = list(texts)
    scorer.prefill(*left_padded([row.tokens[:-1] for row in rows], scorer.device))
    while rows:
        last = torch.tensor([[row.tokens[-1]] for row in rows], device=scorer.device)
        logits = scorer.extend(last, torch.full((len(rows), 1), ROOT_PARENT, device="cpu")).logits[:, 0].float()
        scorer.commit([[0]] * len(rows))
        now = [row.temperature if row.num_message is None else writing.message_temperature for row in rows]
        drawn = draw(logits, torch.tensor(now, dtype=torch.float32, device=logits.device), generator).tolist()
        top = logits.topk(writing.num_candidates).indices.cpu()
        on_tokens(sum(not row.is_done for row in rows))
        for row, token, candidates in zip(rows, drawn, top, strict=True):
            row.num_cached += 1
            if not row.is_done:
                is_message = row.num_message is not None
                row.append(token, candidates, turns, message_ends if is_message else answer_ends, writing)
                row.is_done |= is_enough(row.tokens)
        rows = _without_done(scorer, rows)
    tokens = [token for row in texts for token in row.tokens]
    lengths = [len(row.tokens) for row in texts]
    top = [each for row in texts for each in (*row.top, _unknown(writing))]
    return Texts(torch.tensor(tokens, device="cpu"), torch.tensor(lengths, device="cpu"), torch.stack(top))


def draw(logits: Tensor, temperatures: Tensor, generator: torch.Generator) -> Tensor:
    """One token per row, int64 [B], from softmax(logits / temperature); temperature 0 takes the most probable one.

    By the inverse of the cumulative distribution: a noise for every logit would take a sixth of the time of a pass.
    """
    drawn = logits.argmax(-1)
    is_sampled = temperatures > 0
    probs = (logits[is_sampled] / temperatures[is_sampled].unsqueeze(1)).softmax(-1)
    uniform = torch.rand(len(probs), dtype=torch.float64, device=logits.device, generator=generator)
    drawn[is_sampled] = inverse_cdf(probs, uniform)
    return drawn


def _start(message: Message, turns: Turns, temperature: float, writing: Writing) -> _Row:
    is_open = message.is_open and bool(turns.reply)
    tokens = [*turns.opening, *message.tokens, *([] if is_open else turns.reply)][: writing.max_length - 1]
    top = [_unknown(writing)] * (len(tokens) - 1)
    num_message = len(message.tokens) if is_open else None
    return _Row(tokens, temperature, num_message, top, num_cached=len(tokens) - 1)


def _unknown(writing: Writing) -> Tensor:
    """Filler, -1, for the most probable next tokens where the model did not generate the next one."""
    return torch.full((writing.num_candidates,), -1, device="cpu")


def _without_done(scorer: CausalScorer, rows: list[_Row]) -> list[_Row]:
    """The rows that stay: finished ones leave when they are many, or when the model has no position left for one."""
    stay = [b for b, row in enumerate(rows) if not row.is_done]
    limit = scorer.max_positions
    is_full = limit is not None and any(row.is_done and row.num_cached >= limit for row in rows)
    if stay and len(rows) - len(stay) < len(rows) / LEAVE_SHARE and not is_full:
        return rows
    if stay:
        scorer.select_rows(stay)
    return [rows[b] for b in stay]
