"""`TreeScorer`: an attention model from transformers as a `CausalScorer` of trees, for targets and draft models."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import Cache, PreTrainedModel

from treespec.errors import ContextFullError, TreespecError, UnsupportedModelError
from treespec.hf.attention.folded import FoldedAttention
from treespec.hf.attention.mask import CachedSlots, TreeAttention, attention_layout, is_known_chain, pending_attention
from treespec.hf.attention.position_patches import PositionPatches
from treespec.hf.attention.rope_lengths import RopeByLength
from treespec.hf.cache.caches import cache_shape, check_cache, is_filled, new_cache, prefix_length
from treespec.hf.cache.growing import use_growing_layers
from treespec.hf.cache.slot_cache import SlotCache
from treespec.hf.introspect import ModelFacts
from treespec.hf.models.base import ModelScorer
from treespec.hf.models.prompt import PromptInputs, drop_last_token, position_offsets, shifted
from treespec.hf.models.selfcheck import largest_difference, root_tolerance
from treespec.protocols import Capability, Scores
from treespec.tree import ROOT_PARENT, ancestor_mask


class TreeScorer(ModelScorer):
    """An attention model with a cache that grows by trees and is cut back to paths.

    With `Capability.TREE` trees are scored under a tree attention mask. With `Capability.CHAIN` only chains are
    scored, under the model's own causal mask and with a cache without holes: for models whose attention depends on slot
    numbers, and for attention implementations that take no mask.

    Args:
        model: on any device or devices, or its facts. With a model from `torch.compile`, passes over new nodes run
            compiled and prompts, each of another length, uncompiled.
        capability: what the model scores rightly, which `make_scorer` finds out.
        cache: a cache of the prompt's first tokens, which the first `prefill` continues; all of its layers must grow
            and keep all tokens. An empty one is ignored.
        max_cache_len: slots of a static cache; None for a growing one.
        prompt: with images or sounds, what the first `prefill` reads in place of its ids.
        hidden_layers: the layers whose hidden states are returned with the logits; see `HiddenStates`.

    Raises:
        ConfigError: not a model.
        UnsupportedModelError: the cache cannot be cut back, the attention takes no tree mask, or the model cannot use a
            static cache.
    """

    _skips_padding, _layout_of = True, staticmethod(attention_layout)

    def __init__(
        self,
        model: PreTrainedModel | ModelFacts,
        *,
        capability: Capability = Capability.TREE,
        cache: Cache | None = None,
        max_cache_len: int | None = None,
        prompt: PromptInputs | None = None,
        hidden_layers: Sequence[int] = (),
    ) -> None:
        super().__init__(model, capability, hidden_layers)
        self.max_positions = self.facts.max_positions
        self._max_cache_len = max_cache_len
        self._given_cache = cache if cache is not None and is_filled(cache) else None
        if self._given_cache is not None:
            check_cache(self._given_cache)
        self._prompt = prompt
        self._offsets: Int[Tensor, "*rows B"] | None = None
        self._folded = FoldedAttention(self.facts.model, self.facts.modules)
        self._layout = self._layout_of(self.facts.config) if capability == Capability.TREE else None
        self._patches = PositionPatches(self.facts.model, self.facts.modules)
        self._rope = RopeByLength(self.facts.model, self.facts.modules)
        if self._layout is not None:
            self._layout = replace(self._layout, needs_key_positions=bool(self._patches))
        if max_cache_len is not None and not self._patches.fit_static_caches:
            raise UnsupportedModelError(f"{self.facts.name} counts slots from the end: it cannot use a static cache")
        self._slots: SlotCache | None = None
        self._static_cache: Cache | None = None
        self._is_compact = capability != Capability.TREE
        self._drop_pending(0)

    @property
    def cache(self) -> Cache:
        """The transformers cache, which holds the committed tokens (between steps: all but the last)."""
        return self._state.cache

    @property
    def slots(self) -> CachedSlots:
        """Which slots of the cache hold committed tokens."""
        return self._state.slots

    @torch.no_grad()
    def prefill(self, ids: Int[Tensor, "B P"], mask: Bool[Tensor, "B P"]) -> Scores:
        """See `CausalScorer`; columns that are padding in every row, or that a given cache held, are not computed.

        Raises:
            ContextFullError: the prompt is longer than the position table or the static cache.
            UnsupportedModelError: a given cache is not one of a prefix of the prompt; several rows, for a model that
                counts slots and takes no positions; see also `drop_last_token`.
        """
        num_rows = ids.shape[0]
        rows: list[list[bool]] = mask.tolist()
        lengths = [sum(row) for row in rows]
        self._check_positions(max(lengths, default=0))
        has_positions = "position_ids" in self.facts.arguments or bool(self._patches)
        if num_rows > 1 and self.capability != Capability.TREE and not has_positions:
            raise UnsupportedModelError(
                f"{self.facts.name} takes no position_ids but counts the slots of its cache, which padding and rows of "
                "different lengths shift: give its prompts one by one"
            )
        given, self._given_cache = self._given_cache, None
        prompt, self._prompt, self._offsets = self._prompt, None, None
        num_cached = start = 0
        if given is not None:
            num_cached = prefix_length(given, *ids.shape)
            use_growing_layers(given)
        elif prompt is None and self._skips_padding:  # That all rows share.
            start = min((row.index(True) for row in rows if True in row), default=ids.shape[1])
        ids, mask = ids[:, start:], mask[:, start:]
        is_full = min(lengths, default=0) == ids.shape[1]
        self._rope.start(self._last_positions(lengths))
        cache = self._empty_cache(num_rows) if given is None else given
        self._drop_pending(num_rows)
        self._slots = SlotCache(cache, mask[:, :0], [0] * num_rows, self._is_compact)
        self._slots.append(ids.shape[1])  # Before the pass, so that a full static cache is an error.
        scores = Scores(torch.empty(num_rows, 0, self.vocab_size, dtype=self.facts.dtype, device=self.device))
        if prompt is not None:
            return self._read_prompt(prompt, mask, num_cached)
        if ids.shape[1] > num_cached:
            positions = (mask.long().cumsum(1) - 1).clamp(min=0)[:, num_cached:]
            attention = TreeAttention(None if is_full else mask.long(), positions)
            with self._prepared(ids[:, num_cached:], attention, is_prefill=True) as (inputs, positions):
                scores = self._run(self.facts.model, inputs, positions, has_last_logits_only=True)
        self._slots = SlotCache(cache, mask, lengths, self._is_compact)
        return scores._replace(logits=scores.logits[:, -1:])  # Models without `logits_to_keep` return all.

    @torch.no_grad()
    def extend(self, tokens: Int[Tensor, "B F"], parents: Int[Tensor, "B F"]) -> Scores:
        """See `CausalScorer`.

        After these errors the cache is unchanged. After one in the pass itself, such as a lack of memory, commit empty
        paths before another call.

        Raises:
            ContextFullError: a node's position is beyond the position table, or a static cache is full.
            UnsupportedModelError: a tree, for a model that can only score chains.
        """
        slots, num_new = self._state, tokens.shape[-1]
        self._check_nodes(tokens, parents, len(slots.lengths))
        pending = parents if slots.num_pending == 0 else torch.cat([self._parents, parents], dim=1)
        self._check_depths(pending)
        if self.capability != Capability.TREE and not is_known_chain(pending):
            raise UnsupportedModelError(f"{self.facts.name} can only score chains, got a tree: use a chain policy")
        self._check_single(num_new)
        slots.append(num_new)  # Before the mask is made, as this may repack.
        self._parents = pending
        attention, (tokens,) = self._attend(slots.slots, pending, num_new).upload(self.device, tokens)
        with self._patches.applied(attention) as attention, self._prepared(tokens, attention) as (inputs, positions):
            return self._run(self.facts.forward, inputs, positions)

    @torch.no_grad()
    def commit(self, paths: Sequence[Sequence[int]]) -> None:
        self._state.commit(paths)
        self._drop_pending(len(paths))

    @torch.no_grad()
    def select_rows(self, rows: Sequence[int]) -> None:
        self._state.select_rows(rows)
        self._rope.select_rows(rows)
        if self._offsets is not None:
            self._offsets = self._offsets.index_select(-1, torch.tensor(list(rows), device=self.device))
        self._parents = self._parents[torch.tensor(list(rows), device=self._parents.device)]

    @property
    def _state(self) -> SlotCache:
        if self._slots is None:
            raise TreespecError("the cache is empty: call prefill() first")
        return self._slots

    def _empty_cache(self, num_rows: int) -> Cache:
        """A new cache, or the static one again: compiled passes may have recorded its addresses."""
        used = self._static_cache
        if used is not None and is_filled(used) and cache_shape(used)[0] == num_rows:
            used.reset()
            return used
        cache = new_cache(self.facts.config.num_hidden_layers, self._max_cache_len)
        self._static_cache = None if self._max_cache_len is None else cache
        return cache

    def _last_positions(self, lengths: Sequence[int]) -> Int[Tensor, "B 1"]:
        """The last ones in the plain pass that reads texts of these lengths."""
        return torch.tensor(lengths, device="cpu").unsqueeze(1) - 1

    def _drop_pending(self, num_rows: int) -> None:
        self._parents = torch.empty(num_rows, 0, dtype=torch.int64, device="cpu")

    def _attend(self, slots: CachedSlots, parents: Int[Tensor, "B N"], num_new: int) -> TreeAttention:
        """Mask and positions of the last `num_new` of the N pending nodes."""
        if self._layout is not None:
            if self._max_cache_len is None:
                return pending_attention(slots, parents, num_new, self._layout, self.facts.dtype)
            # Always a mask, always the same strides: others would make torch.compile compile again.
            slots = replace(slots, is_contiguous=False)
            attention = pending_attention(slots, parents, num_new, self._layout, self.facts.dtype)
            return replace(attention, position_ids=attention.position_ids.clone(memory_format=torch.contiguous_format))
        num_pending = parents.shape[1]
        positions = slots.lengths.unsqueeze(1) + torch.arange(num_pending - num_new, num_pending, device="cpu")
        mask = torch.nn.functional.pad(slots.mask.long(), (0, num_pending), value=1)
        return TreeAttention(None if slots.is_contiguous else mask, positions)

    @contextmanager
    def _prepared(
        self, tokens: Int[Tensor, "B F"], attention: TreeAttention, is_prefill: bool = False
    ) -> Iterator[tuple[dict[str, Any], Int[Tensor, "*rows B F"]]]:
        """Inside a pass over these tokens runs as it should, with these inputs and positions."""
        inputs = {"input_ids": tokens, "attention_mask": attention.mask, self.facts.cache_argument: self.cache}
        positions = shifted(attention.position_ids, self._offsets)
        is_eager = is_prefill or self.facts.forward is self.facts.model
        is_folded = not is_prefill and is_eager and self.capability != Capability.PLAIN
        with (
            self._rope.applied(positions) if is_eager else nullcontext(),
            self._folded.running() if is_folded else nullcontext(),
        ):
            yield inputs, positions

    def _read_prompt(self, prompt: PromptInputs, mask: Bool[Tensor, "B P"], num_cached: int) -> Scores:
        """Read a whole prompt, and its last token once more as text, which all nodes will be."""
        cache, mask = self._state.cache, mask[:, :-1]
        scores = self._run_prompt(prompt, mask.sum(1), num_cached)
        drop_last_token(cache, prompt.ids.shape[1], self.facts.name)
        self._slots = SlotCache(cache, mask, mask.sum(1).tolist(), self._is_compact)
        last = self.extend(prompt.ids[:, -1:].cpu(), torch.full((len(mask), 1), ROOT_PARENT, device="cpu"))
        self._check_last(last.logits[:, 0], scores.logits[:, -1])
        self.commit([(0,)] * len(mask))
        pairs = ((layer, states[:, :-1], last.hidden_states[layer]) for layer, states in scores.hidden_states.items())
        return Scores(last.logits, {layer: torch.cat(pair, 1) for layer, *pair in pairs})

    def _run_prompt(self, prompt: PromptInputs, last: Int[Tensor, " B"], num_cached: int) -> Scores:
        """The pass over a prompt whose rows' last tokens have the numbers `last`; nodes follow these in position."""
        inputs = prompt.model_inputs(self.facts.model, self.cache, num_cached)
        with self._rope.apart():
            scores = self._run(self.facts.model, inputs, has_last_logits_only=True)
        self._offsets = position_offsets(inputs.get("position_ids"), last.to(self.device))
        self._rope.start(shifted(last.unsqueeze(1), self._offsets))
        return scores

    def _check_last(self, logits: Float[Tensor, "B V"], expected: Float[Tensor, "B V"]) -> None:
        """Raise `UnsupportedModelError` where the prompt's last token, read as text, has other logits than before."""
        difference, tolerance = float(largest_difference(logits, expected)), root_tolerance(self.facts)
        if not difference <= tolerance:
            raise UnsupportedModelError(
                f"{self.facts.name} cannot continue this prompt by trees: its last token, read again as text, has "
                f"logits that differ by {difference:.2g} standard deviations, more than {tolerance:.2g}; a prompt must "
                "end in text"
            )

    def _check_depths(self, parents: Int[Tensor, "B N"]) -> None:
        """Raise `ContextFullError` when a pending node's position is beyond the position table."""
        longest = max(self._state.lengths, default=0)
        # No node is deeper than there are nodes: depths are made near the end alone.
        if self.max_positions is None or longest + parents.shape[1] <= self.max_positions:
            return
        depths = (ancestor_mask(parents).sum(-1)).amax(1).tolist()
        self._check_positions(max(length + depth for length, depth in zip(self._state.lengths, depths, strict=True)))

    def _check_positions(self, num_positions: int) -> None:
        if self.max_positions is not None and num_positions > self.max_positions:
            raise ContextFullError(
                f"{self.facts.name} has a table of {self.max_positions} positions, but {num_positions} are "
                "needed: shorten the prompt, max_new_tokens or the tree"
            )
