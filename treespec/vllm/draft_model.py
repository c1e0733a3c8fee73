"""A draft model in vLLM: transformers' own of the same folder, over rows that join and leave."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from treespec.drafters import DraftModel
from treespec.drafters.model.pending_nodes import PendingNodes
from treespec.drafters.model.token_map import left_padded
from treespec.errors import ConfigError
from treespec.heads.files.config import read_config
from treespec.hf.cache.caches import filled_layers
from treespec.hf.cache.slot_cache import SlotCache
from treespec.hf.introspect import model_facts
from treespec.hf.loading.models import load_model
from treespec.hf.models.make_scorer import make_scorer
from treespec.hf.models.tree_scorer import TreeScorer
from treespec.protocols import Capability, Frontier, Session
from treespec.vllm.files import Files

SHORT = 256
"""A longer text is read in a pass of its own, as the others would be padded to its length."""
MOST_MISSED = 32
"""Tokens of a row that one pass reads after steps without drafts: it makes the logits of all of them."""


class JoinedScorer(TreeScorer):
    """A `TreeScorer` of trees whose rows may also join, between two commits."""

    def add_rows(self, ids: Int[Tensor, "B P"], mask: Bool[Tensor, "B P"]) -> None:
        """Read these rows, as `prefill` does, after the others."""
        joined = copy(self)
        joined.prefill(ids, mask)
        self._slots = _joined(self._state, joined._state)
        self._drop_pending(len(self._slots.lengths))
        self._rope.start(torch.tensor(self._slots.lengths, device="cpu").unsqueeze(1))


def _joined(first: SlotCache, second: SlotCache) -> SlotCache:
    """The rows of both caches, which the first one holds then; neither has pending nodes."""
    most = max(first.num_slots, second.num_slots)
    spare = [most - slots.num_slots for slots in (first, second)]  # In front: nodes follow the last slot of every row.
    for layers in zip(filled_layers(first.cache), filled_layers(second.cache), strict=True):
        for name in ("keys", "values"):
            parts = [pad(getattr(layer, name), (0, 0, n, 0)) for layer, n in zip(layers, spare, strict=True)]
            setattr(layers[0], name, torch.cat(parts))
    masks = [pad(slots.slots.mask, (n, 0)) for slots, n in zip((first, second), spare, strict=True)]
    mask = torch.cat(masks).to(filled_layers(first.cache)[0].keys.device)
    return SlotCache(first.cache, mask, [*first.lengths, *second.lengths])


class ServedModel(DraftModel):
    """`DraftModel` for rows that join and leave.

    Those that have joined are read when the next tree is drafted: what is not drafted costs nothing.

    Attributes:
        share: its weights, as a share of the target's.
    """

    _scorer: JoinedScorer

    def __init__(self, scorer: JoinedScorer, share: float) -> None:
        super().__init__(scorer)
        self.share = share

    def start(self, session: Session) -> None:
        """See `Drafter`; there are no rows yet."""
        # Policies read distributions where they are and take a few numbers of them.
        self._session = replace(session, device=self._scorer.device)
        self._text = self._vocabulary.read(session, self._scorer.vocab_size)
        self._pending, self._is_full = None, False
        self._num_cached, self._root_logits, self._is_read = [], [], list[bool]()

    def add_rows(self, num_rows: int) -> None:
        """See `ServingDrafter`."""
        self._num_cached += [0] * num_rows
        self._root_logits += [None] * num_rows
        self._is_read += [False] * num_rows

    def select_rows(self, rows: Sequence[int]) -> None:
        """See `Drafter`; what was drafted for the last step is dropped, as it has the others' rows."""
        if self._pending is not None:
            self._commit(self._pending.chain_lengths)
            self._pending = None
        number = list(accumulate(self._is_read, initial=0))
        if read := [number[row] for row in rows if self._is_read[row]]:
            self._scorer.select_rows(read)
        self._num_cached = [self._num_cached[row] for row in rows]
        self._root_logits = [self._root_logits[row] for row in rows]
        self._is_read = [self._is_read[row] for row in rows]

    def num_unread(self, length: int, row: int | None) -> int:
        """Tokens that a draft for a text of this length reads first; `row`: the drafter's, None of one that joins."""
        return length if row is None else length - self._num_cached[row]

    def _catch_up(self) -> Tensor:
        joined = [row for row, is_read in enumerate(self._is_read) if not is_read]
        short = [row for row in joined if self._length(row) <= SHORT]
        for rows in (short, *([row] for row in joined if row not in short)):
            if rows:
                self._read(rows)
        while max(missing := self._num_missing()) > MOST_MISSED:
            counts = [min(max(count - 1, 0), MOST_MISSED) for count in missing]
            texts = zip(map(self._text.history.tokens, range(len(counts))), self._num_cached, counts, strict=True)
            nodes = PendingNodes([text[first : first + count].tolist() for text, first, count in texts])
            self._score(nodes.tokens, nodes.parents)
            self._commit(counts)
        return super()._catch_up()

    def _commit(self, counts: Sequence[int]) -> None:
        """Keep the first pending tokens of every row, which are of its text."""
        self._scorer.commit([list(range(count)) for count in counts])
        self._num_cached = [cached + count for cached, count in zip(self._num_cached, counts, strict=True)]

    def _probs(self, logits: Float[Tensor, "B F W"], frontier: Frontier) -> Float[Tensor, "B F V"]:
        return logits.softmax(-1, dtype=torch.float32)  # Requests' processors are the target's alone.

    def _read(self, joined: Sequence[int]) -> None:
        """Read the texts of rows but their last tokens, the roots."""
        texts = [self._text.history.tokens(row)[:-1].tolist() for row in joined]
        known = [row for row, is_read in enumerate(self._is_read) if is_read]
        (self._scorer.add_rows if known else self._scorer.prefill)(*left_padded(texts, self._scorer.device))
        order = [*known, *joined]
        if order != sorted(order):
            self._scorer.select_rows([order.index(row) for row in sorted(order)])
        for row, text in zip(joined, texts, strict=True):
            self._num_cached[row], self._is_read[row] = len(text), True


def load_served_model(name: str, config: Any, files: Files, num_weights: int, device: torch.device) -> ServedModel:
    """The draft model of a folder or hub name, for vLLM's model of this `ModelConfig` and number of weights.

    Raises:
        CheckpointError: see `Files.find` and `load_model`.
        ConfigError: it is quantised, has another vocabulary, cannot draft trees, or has too few positions.
        UnsupportedModelError: see `make_scorer`.
    """
    path = (folder := files.find(name)) / "config.json"
    if path.is_file() and "quantization_config" in read_config(path):
        raise ConfigError(f"the draft model {name} is quantised, which transformers would read: take it unquantised")
    model: Any = load_model(str(folder), dtype=config.dtype)
    facts, vocab_size = model_facts(model.to(device).eval()), config.get_vocab_size()
    if facts.num_logits != vocab_size:
        raise ConfigError(
            f"the draft model {name} has a vocabulary of {facts.num_logits} tokens, {config.model} one of "
            f"{vocab_size}: trees are drafted by models with the target's vocabulary"
        )
    scorer = make_scorer(facts)
    if type(scorer) is not TreeScorer or scorer.capability != Capability.TREE:
        raise ConfigError(f"the draft model {name} cannot draft trees in vLLM ({facts.name}): take another")
    if facts.max_positions is not None and facts.max_positions < config.max_model_len:
        most = f"set max_model_len to that, from {config.max_model_len}"
        raise ConfigError(f"the draft model {name} has {facts.max_positions} positions: {most}")
    return ServedModel(JoinedScorer(facts), scorer.num_weights / num_weights)
