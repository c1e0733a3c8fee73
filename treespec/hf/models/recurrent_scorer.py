"""`RecurrentScorer`: models whose cache is a state and not a list of tokens decode chains by snapshot and replay.

A state-space or convolution layer folds every token into one state, so siblings would mix and a rejected token cannot
be dropped. Before a chain is scored each layer's state is noted; a commit that keeps less than the whole chain goes
back to the note and feeds the accepted tokens once more. Axis letters: B rows, P prompt tokens, F new nodes, V
vocabulary, H hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import Cache, DynamicCache, PreTrainedModel

from treespec.errors import TreespecError, UnsupportedModelError
from treespec.hf.cache.caches import CacheState, restore, snapshot
from treespec.hf.introspect import cache_argument
from treespec.hf.models.base import ModelScorer
from treespec.protocols import Capability, HiddenStates, Scores
from treespec.tree import PADDING_PARENT


@dataclass
class _Row:
    """One row of the batch: its own cache, the state before the pending chain, and that chain's tokens."""

    cache: Cache
    length: int = 0
    state: CacheState | None = None
    pending: list[int] = field(default_factory=list)


class RecurrentScorer(ModelScorer):
    """A model with recurrent or convolution states as a `CausalScorer` of chains, or of single tokens.

    Every row has a cache of its own and takes its own passes: states have no padding that could be masked, so rows of
    different lengths cannot share one. Left padding is never fed.

    With `Capability.CHAIN` the chain of one `extend` is one pass; with `Capability.PLAIN` an `extend` takes one node.
    In both cases several `extend` calls between two commits may continue the pending chain, as draft models do.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        capability: Capability = Capability.CHAIN,
        hidden_layers: Sequence[int] = (),
    ) -> None:
        """Wrap a model; its weights, mode and configuration stay as they are.

        Args:
            model: takes a transformers cache as `past_key_values` or `cache_params`.
            capability: CHAIN, or PLAIN for models that cannot continue a cache with several tokens in one pass.
            hidden_layers: whose hidden states to return with the logits; see `HiddenStates`.

        Raises:
            UnsupportedModelError: TREE was asked for, or the model takes no transformers cache.
        """
        if capability == Capability.TREE:
            raise UnsupportedModelError(f"{type(model).__name__} keeps a state that mixes siblings: it scores no trees")
        super().__init__(model, capability, hidden_layers)
        self._cache_argument = cache_argument(model)
        self._rows: list[_Row] = []

    @property
    def max_positions(self) -> int | None:
        """None: a state has no end."""
        return None

    @property
    def cache(self) -> Cache | None:
        """The transformers cache of a single row; None for several rows, each of which has its own."""
        return self._rows[0].cache if len(self._rows) == 1 else None

    @torch.no_grad()
    def prefill(self, ids: Tensor, mask: Tensor) -> HiddenStates:
        """Start anew with the committed tokens that are to be cached: ids int64 [B, P], mask bool [B, P], P >= 0.

        Returns the wanted hidden states [B, P, H], zero on padding; none when there is no token.
        """
        self._rows = [_Row(DynamicCache(config=self._model.config)) for _ in range(ids.shape[0])]
        states = [
            self._feed(row, tokens[valid], has_last_logits_only=True).hidden_states if valid.any() else None
            for row, tokens, valid in zip(self._rows, ids, mask, strict=True)
        ]
        return _stack_states(states, ids.shape[1], is_left_padded=True)

    @torch.no_grad()
    def extend(self, tokens: Tensor, parents: Tensor) -> Scores:
        """Score F new pending nodes per row, which continue the row's pending chain.

        Args:
            tokens: int64 [B, F].
            parents: int64 [B, F], ids of pending nodes; -1 attaches a node to the last committed token, -2 is padding.

        Returns:
            logits [B, F, V], zero at padding.

        Raises:
            UnsupportedModelError: the pending nodes are no chain, or are several for a model that decodes plainly.
                Nothing has changed then.
        """
        chains = [self._chain(*row) for row in zip(self._checked_rows(tokens, parents), tokens, parents, strict=True)]
        outputs = [self._extend_row(row, chain) for row, chain in zip(self._rows, chains, strict=True)]
        return _stack_scores(outputs, tokens.shape[1])

    @torch.no_grad()
    def commit(self, paths: Sequence[Sequence[int]]) -> None:
        """Keep, per row, the first `len(paths[b])` pending nodes and drop the others.

        Raises:
            TreespecError: a path is not the beginning of the pending chain, or there is not one path per row.
        """
        if len(paths) != len(self._rows):
            raise TreespecError(f"expected one path for each of {len(self._rows)} rows, got {len(paths)}")
        for row, path in zip(self._rows, paths, strict=True):
            if list(path) != list(range(len(path))) or len(path) > len(row.pending):
                expected = f"the beginning of a chain of {len(row.pending)} nodes"
                raise TreespecError(f"expected {expected}, got path {list(path)}")
        for row, path in zip(self._rows, paths, strict=True):
            self._commit_row(row, len(path))

    def select_rows(self, rows: Sequence[int]) -> None:
        """Keep only these rows, in this order."""
        self._rows = [self._rows[row] for row in rows]

    def _checked_rows(self, tokens: Tensor, parents: Tensor) -> list[_Row]:
        if tokens.shape != parents.shape or tokens.ndim != 2 or tokens.shape[0] != len(self._rows):
            expected = f"int64 [{len(self._rows)}, F] after prefill()"
            raise TreespecError(f"expected {expected}, got tokens {list(tokens.shape)}, parents {list(parents.shape)}")
        return self._rows

    def _chain(self, row: _Row, tokens: Tensor, parents: Tensor) -> Tensor:
        """The row's new tokens without padding, int64 [<= F]."""
        is_node = parents != PADDING_PARENT
        found = parents[is_node].tolist()
        start = len(row.pending) - 1
        name = type(self._model).__name__
        if found != list(range(start, start + len(found))) or not is_node[: len(found)].all():
            raise UnsupportedModelError(
                f"{name} keeps a state and can only score chains, got parents {parents.tolist()} after "
                f"{len(row.pending)} pending nodes: use a chain policy with it"
            )
        if self._capability == Capability.PLAIN and len(found) > 1:
            raise UnsupportedModelError(f"{name} decodes one token at a time, got a chain of {len(found)} nodes")
        return tokens[is_node]

    def _extend_row(self, row: _Row, chain: Tensor) -> Scores | None:
        if not len(chain):
            return None
        if row.state is None:
            row.state = snapshot(row.cache)
        row.pending += chain.tolist()
        return self._feed(row, chain)

    def _commit_row(self, row: _Row, num_kept: int) -> None:
        dropped = len(row.pending) - num_kept
        if dropped and row.state is not None:
            restore(row.cache, row.state)
            row.length -= len(row.pending)
            replayed = torch.tensor(row.pending[:num_kept], dtype=torch.int64, device=self.device)
            step = 1 if self._capability == Capability.PLAIN else max(num_kept, 1)
            for tokens in replayed.split(step) if num_kept else ():
                self._feed(row, tokens, has_last_logits_only=True)
        row.state, row.pending = None, []

    def _feed(self, row: _Row, tokens: Tensor, has_last_logits_only: bool = False) -> Scores:
        """One pass over a row's next tokens int64 [F], F >= 1: logits [1, F, V]."""
        inputs = {"input_ids": tokens.unsqueeze(0).to(self.device), self._cache_argument: row.cache}
        positions = torch.arange(row.length, row.length + len(tokens), device=self.device).unsqueeze(0)
        scores = self._run(self._model, inputs, positions, has_last_logits_only)
        row.length += len(tokens)
        return scores


def _stack_scores(rows: Sequence[Scores | None], width: int) -> Scores:
    """One batch from the rows' own scores; None stands for a row without a node."""
    if all(scores is None for scores in rows):
        raise TreespecError("extend() got padding only: at least one row needs a node")
    logits = _stack_rows([None if scores is None else scores.logits for scores in rows], width)
    return Scores(logits, _stack_states([None if scores is None else scores.hidden_states for scores in rows], width))


def _stack_states(rows: Sequence[HiddenStates | None], width: int, is_left_padded: bool = False) -> HiddenStates:
    layers = next((states for states in rows if states is not None), {})
    return {
        layer: _stack_rows([None if states is None else states[layer] for states in rows], width, is_left_padded)
        for layer in layers
    }


def _stack_rows(rows: Sequence[Tensor | None], width: int, is_left_padded: bool = False) -> Tensor:
    """Tensors [1, <= F, D] to one [B, F, D], zero before or behind a row and in rows of None."""
    first = next(row for row in rows if row is not None)
    stacked = first.new_zeros(len(rows), width, first.shape[2])
    for target, row in zip(stacked, rows, strict=True):
        if row is not None:
            place = slice(width - row.shape[1], width) if is_left_padded else slice(row.shape[1])
            target[place] = row[0]
    return stacked
