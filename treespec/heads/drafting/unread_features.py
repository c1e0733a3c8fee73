"""Hidden states of committed tokens for draft heads: those not read yet (Y is the width of all layers that a head
reads), or the last one alone."""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from treespec.drafters.base import SessionSource
from treespec.protocols import HiddenStates, Session, VerifiedStep
from treespec.tree import pad_rows
from treespec.tree.transfer import upload

LAST = -1
MAX_COLUMNS = 512
"""The most tokens that one pass catches up with: it bounds the attention's memory on long prompts."""


class Pairs(NamedTuple):
    """Committed tokens that the head has not read, with the states before them: `counts[b]` of row b, first.

    The states are on the call's device, the tokens on the host.
    """

    states: Float[Tensor, "B M Y"]
    tokens: Int[Tensor, "B M"]
    counts: list[int]


class UnreadFeatures:
    """Collects the states of the target's passes, of the layers that a head reads.

    `offsets`: the position of the first state per row, above zero where a given cache held a prompt's first tokens.
    """

    def __init__(self, session: Session, hidden_layers: Sequence[int]) -> None:
        self._session = session
        self._hidden_layers = tuple(hidden_layers)
        self.offsets = [0] * session.history.num_rows
        self._unread: list[Pairs] = []
        if session.prompt_states:
            self._unread.append(self._prompt_pairs(session.prompt_states))

    @property
    def reaches_roots(self) -> bool:
        """Whether every row has unread pairs; the last one's token is the root."""
        return bool(self._unread) and min(self._unread[-1].counts) > 0

    def add(self, step: VerifiedStep) -> None:
        """Keep the emitted tokens and the states before them."""
        counts = [len(tokens) for tokens in step.emitted]
        # A node's state pairs with the token after it, so the path begins with the root.
        paths = [verdict.path[:count] for verdict, count in zip(step.verdicts, counts, strict=True)]
        (index,) = upload(self._session.device, torch.tensor(pad_rows(paths, 0), device="cpu"))
        states = take_columns(self._join_layers(step.scores.hidden_states), index)
        self._unread.append(Pairs(states, torch.tensor(pad_rows(step.emitted, 0), device="cpu"), counts))

    def take(self) -> list[Pairs]:
        """All pairs that were not taken yet, in order, in parts of at most `MAX_COLUMNS` columns."""
        parts = []
        for pairs in self._unread if len(self._unread) < 2 else [_joined(self._unread)]:
            for start in range(0, pairs.tokens.shape[1], MAX_COLUMNS):
                columns = slice(start, start + MAX_COLUMNS)
                counts = [min(max(count - start, 0), MAX_COLUMNS) for count in pairs.counts]
                parts.append(Pairs(pairs.states[:, columns], pairs.tokens[:, columns], counts))
        self._unread = []
        return parts

    def select_rows(self, rows: Sequence[int]) -> None:
        """Keep only these rows, in this order."""
        index = torch.tensor(list(rows), device="cpu")
        (states_index,) = upload(self._session.device, index)
        self.offsets = [self.offsets[b] for b in rows]
        self._unread = [
            Pairs(p.states[states_index], p.tokens[index], [p.counts[b] for b in rows]) for p in self._unread
        ]

    def _prompt_pairs(self, states: HiddenStates) -> Pairs:
        """The prompt's pairs: those of its last columns, where a given cache held the first ones."""
        history = self._session.history
        joined = self._join_layers(states)
        last = history.lengths[0] - 1
        start = last - joined.shape[1]
        firsts = [max(start, padding) for padding in history.num_padding]
        self.offsets = [first - padding for first, padding in zip(firsts, history.num_padding, strict=True)]
        tokens = torch.stack([history.row(b) for b in range(history.num_rows)])[:, start + 1 :]
        if len(set(firsts)) > 1 or firsts[0] > start:
            shift = torch.tensor(firsts, device="cpu").unsqueeze(1) - start
            index = (shift + torch.arange(tokens.shape[1], device="cpu")).clamp(max=tokens.shape[1] - 1)
            joined, tokens = take_columns(joined, *upload(joined.device, index)), tokens.gather(1, index)
        return Pairs(joined, tokens, [last - first for first in firsts])

    def _join_layers(self, states: HiddenStates) -> Float[Tensor, "B N Y"]:
        return torch.cat([states[layer].to(self._session.device) for layer in self._hidden_layers], -1)


class RootReader(SessionSource):
    """A drafter that keeps nothing of a text but the target's last hidden state before every row's root."""

    hidden_layers: tuple[int, ...] = (LAST,)
    _root_states: Float[Tensor, "B H"]
    """On the call's device, from the first update on, that with the prompt's last token."""

    def update(self, step: VerifiedStep) -> None:
        """Keep the state at each row's last accepted node: the one that the next root was chosen after."""
        states = step.scores.hidden_states[LAST]
        nodes = [v.path[max(len(tokens) - 1, 0)] for v, tokens in zip(step.verdicts, step.emitted, strict=True)]
        index = upload(states.device, torch.arange(len(nodes), device="cpu"), torch.tensor(nodes, device="cpu"))
        self._root_states = states[index[0], index[1]].to(self._session.device)

    def select_rows(self, rows: Sequence[int]) -> None:
        """Keep only these rows, in this order."""
        (index,) = upload(self._root_states.device, torch.tensor(list(rows), device="cpu"))
        self._root_states = self._root_states[index]


def _joined(parts: Sequence[Pairs]) -> Pairs:
    """The pairs of several steps as one: after steps without a draft one pass reads them all."""
    starts = [0, *accumulate(part.tokens.shape[1] for part in parts)]
    rows = zip(*(part.counts for part in parts), strict=True)
    columns = [[s + i for s, n in zip(starts, counts, strict=False) for i in range(n)] for counts in rows]
    counts = list(map(len, columns))
    index = torch.tensor(pad_rows(columns, 0), device="cpu")
    states = torch.cat([part.states for part in parts], 1)
    tokens = torch.cat([part.tokens for part in parts], 1)
    return Pairs(take_columns(states, *upload(states.device, index)), tokens.gather(1, index), counts)


def take_columns(states: Float[Tensor, "B N H"], index: Int[Tensor, "B M"]) -> Float[Tensor, "B M H"]:
    """The states of columns; a view of a single one, as every index names that."""
    if states.shape[1] == 1:
        return states.expand(-1, index.shape[1], -1)
    return states.gather(1, index.unsqueeze(-1).expand(-1, -1, states.shape[-1]))
