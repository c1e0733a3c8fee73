"""`RecurrentScorer`: models whose cache is a state, not a list of tokens, decode chains by snapshot and replay.

A snapshot of the layers' states is taken before a chain is scored; a commit of less than the chain restores it and
feeds the accepted tokens again. A prompt with images or sounds is read in one pass.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import Cache, DynamicCache, PreTrainedModel

from treespec.errors import TreespecError, UnsupportedModelError
from treespec.hf.cache.caches import CacheState, restore, row_cache, snapshot
from treespec.hf.introspect import ModelFacts
from treespec.hf.models.base import ModelScorer
from treespec.hf.models.prompt import PromptInputs, position_offsets, shifted
from treespec.protocols import Capability, HiddenStates, Scores
from treespec.tree import PADDING_PARENT


@dataclass
class Row:
    """One row of the batch: its own cache, the state before the pending chain, and that chain's tokens.

    `offsets` int64 [*rows, 1]: what the model's positions are ahead of the tokens' numbers; None: nothing.
    """

    cache: Cache
    length: int = 0
    offsets: Int[Tensor, "*rows 1"] | None = None
    state: CacheState | None = None
    pending: list[int] = field(default_factory=list)


class RecurrentScorer(ModelScorer):
    """A model with recurrent or convolution states as a `CausalScorer` of chains, or of single tokens.

    Every row has its own cache and its own passes: padding cannot be masked in a state. Several `extend` calls between
    two commits may continue the pending chain, as draft models do.

    Args:
        capability: CHAIN, or PLAIN for models that cannot continue a cache with several tokens in one pass.
        hidden_layers: see `TreeScorer`.
        prompt: with images or sounds, what the first `prefill` reads in place of its ids.

    Raises `UnsupportedModelError`: TREE was asked for, or a row of the prompt ends in an image or a sound.
    """

    def __init__(
        self,
        model: PreTrainedModel | ModelFacts,
        *,
        capability: Capability = Capability.CHAIN,
        hidden_layers: Sequence[int] = (),
        prompt: PromptInputs | None = None,
    ) -> None:
        super().__init__(model, capability, hidden_layers)
        if capability == Capability.TREE:
            raise UnsupportedModelError(f"{self.facts.name} keeps a state that mixes siblings: it scores no trees")
        if prompt is not None:
            prompt.check_ends_in_text(self.facts.model.config, self.facts.name)
        self._prompt = prompt
        self.max_positions = None
        self._rows: list[Row] = []

    @property
    def cache(self) -> Cache | None:
        """The transformers cache of a single row; None for several rows, each of which has its own."""
        return self._rows[0].cache if len(self._rows) == 1 else None

    @torch.no_grad()
    def prefill(self, ids: Int[Tensor, "B P"], mask: Bool[Tensor, "B P"]) -> Scores:
        """See `CausalScorer`; hidden states are zero on padding. Raises `UnsupportedModelError`: see `row_cache`."""
        prompt, self._prompt = self._prompt, None
        if prompt is not None:
            return self._read_prompt(prompt, mask)
        self._rows = [Row(DynamicCache(config=self.facts.model.config)) for _ in range(ids.shape[0])]
        if not ids.shape[1]:
            return Scores(torch.empty(len(ids), 0, self.vocab_size, dtype=self.facts.dtype, device=self.device))
        outputs = [
            self._feed(row, tokens[valid], has_last_logits_only=True) if valid.any() else None
            for row, tokens, valid in zip(self._rows, ids, mask, strict=True)
        ]
        logits = _stack_rows([scores and scores.logits[:, -1:] for scores in outputs], 1)
        return Scores(
            logits, _stack_states([s and s.hidden_states for s in outputs], ids.shape[1], is_left_padded=True)
        )

    @torch.no_grad()
    def extend(self, tokens: Int[Tensor, "B F"], parents: Int[Tensor, "B F"]) -> Scores:
        """See `CausalScorer`; the nodes continue their row's pending chain. Logits are zero at padding.

        Trees, and several nodes in plain decoding, are an `UnsupportedModelError` and leave the cache unchanged.
        """
        self._check_nodes(tokens, parents, len(self._rows))
        chains = [self._chain(*row) for row in zip(self._rows, tokens, parents, strict=True)]
        if not any(map(len, chains)):
            raise TreespecError("extend() got padding only: at least one row needs a node")
        outputs = [self._extend_row(row, chain) for row, chain in zip(self._rows, chains, strict=True)]
        logits = _stack_rows([scores and scores.logits for scores in outputs], tokens.shape[1])
        states = _stack_states([scores and scores.hidden_states for scores in outputs], tokens.shape[1])
        return Scores(logits, states)

    @torch.no_grad()
    def commit(self, paths: Sequence[Sequence[int]]) -> None:
        """See `CausalScorer`. Raises `TreespecError`: a path that is not the beginning of the pending chain."""
        if len(paths) != len(self._rows):
            raise TreespecError(f"expected one path for each of {len(self._rows)} rows, got {len(paths)}")
        for row, path in zip(self._rows, paths, strict=True):
            if list(path) != list(range(len(row.pending)))[: len(path)]:
                raise TreespecError(
                    f"expected the beginning of a chain of {len(row.pending)} nodes, got path {list(path)}"
                )
        for row, path in zip(self._rows, paths, strict=True):
            self._commit_row(row, len(path))

    def select_rows(self, rows: Sequence[int]) -> None:
        self._rows = [self._rows[row] for row in rows]

    def _read_prompt(self, prompt: PromptInputs, mask: Bool[Tensor, "B P"]) -> Scores:
        cache = DynamicCache(config=self.facts.model.config)
        inputs = prompt.model_inputs(self.facts.model, cache, 0)
        lengths = mask.sum(1)
        offsets = position_offsets(inputs.get("position_ids"), lengths.to(self.device) - 1)
        scores = self._run(self.facts.model, inputs, has_last_logits_only=True)
        self._rows = [
            Row(row_cache(cache, number, length), length, None if offsets is None else offsets[..., [number]])
            for number, length in enumerate(lengths.tolist())
        ]
        states = {layer: states * mask.unsqueeze(-1).to(states) for layer, states in scores.hidden_states.items()}
        return Scores(scores.logits[:, -1:], states)

    def _chain(self, row: Row, tokens: Int[Tensor, " F"], parents: Int[Tensor, " F"]) -> Int[Tensor, " L"]:
        """The row's new tokens without padding."""
        is_node = parents != PADDING_PARENT
        found = parents[is_node].tolist()
        start = len(row.pending) - 1
        if found != list(range(start, start + len(found))) or not is_node[: len(found)].all():
            got = f"parents {parents.tolist()} after {len(row.pending)} pending nodes: use a chain policy with it"
            raise UnsupportedModelError(f"{self.facts.name} keeps a state and can only score chains, got {got}")
        self._check_single(len(found))
        return tokens[is_node]

    def _extend_row(self, row: Row, chain: Int[Tensor, " L"]) -> Scores | None:
        if not len(chain):
            return None
        row.state = row.state or snapshot(row.cache)  # Later passes of a step begin after pending tokens.
        row.pending += chain.tolist()
        return self._feed(row, chain)

    def _commit_row(self, row: Row, num_kept: int) -> None:
        dropped = len(row.pending) - num_kept
        if dropped and row.state is not None:
            restore(row.cache, row.state)  # A state cannot be cut back: what stays is read once more.
            row.length -= len(row.pending)
            replayed = torch.tensor(row.pending[:num_kept], dtype=torch.int64, device=self.device)
            step = 1 if self.capability == Capability.PLAIN else max(num_kept, 1)  # PLAIN: grouping changes numbers.
            for tokens in replayed.split(step) if num_kept else ():
                self._feed(row, tokens, has_last_logits_only=True)
        row.state, row.pending = None, []

    def _feed(self, row: Row, tokens: Int[Tensor, " L"], has_last_logits_only: bool = False) -> Scores:
        """One pass over a row's next tokens, L >= 1: logits [1, L, V]."""
        inputs = {"input_ids": tokens.unsqueeze(0).to(self.device), self.facts.cache_argument: row.cache}
        numbers = torch.arange(row.length, row.length + len(tokens), device=self.device).unsqueeze(0)
        scores = self._run(self.facts.model, inputs, shifted(numbers, row.offsets), has_last_logits_only)
        row.length += len(tokens)
        return scores


def _stack_states(rows: Sequence[HiddenStates | None], width: int, is_left_padded: bool = False) -> HiddenStates:
    layers = next((states for states in rows if states is not None), {})
    return {
        layer: _stack_rows([None if states is None else states[layer] for states in rows], width, is_left_padded)
        for layer in layers
    }


def _stack_rows(rows: Sequence[Tensor | None], width: int, is_left_padded: bool = False) -> Float[Tensor, "B F H"]:
    """Logits or hidden states of up to F tokens per row in one tensor; zero elsewhere, and in rows of None."""
    first = next(row for row in rows if row is not None)
    stacked = first.new_zeros(len(rows), width, first.shape[2])
    for target, row in zip(stacked, rows, strict=True):
        if row is not None:
            columns = slice(width - row.shape[1], width) if is_left_padded else slice(row.shape[1])
            target[columns] = row[0]
    return stacked
