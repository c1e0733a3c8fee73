"""How much memory a speculation takes, before it runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from treespec.checks import check_count
from treespec.drafters import TokenRecycling
from treespec.errors import ConfigError
from treespec.heads import MedusaHeads, Mtp
from treespec.heads.drafting.base import HeadDrafter
from treespec.hf.evaluation import evaluation_mode
from treespec.hf.generation.speculation import TreeSpeculation
from treespec.hf.introspect import ModelFacts, cache_in, model_facts, num_logits, unwrapped
from treespec.hf.models.base import ModelScorer
from treespec.hf.models.capability import keeps_states
from treespec.hf.models.make_scorer import make_scorer
from treespec.hf.recurrent.scorer import StateScorer
from treespec.protocols import Drafter, FeatureDrafter

PROBABILITY, TOKEN_ID = 4, 8
"""Bytes of a float32 and of an int64."""
TABLES = {"cpu": 2, "accelerator": 15}
"""Float32 numbers per node and token of the vocabulary, logits not counted: the model's distribution and the draft's.
Accelerators verify all nodes of sampled trees at once, and keep the distributions and logits of nodes that were cut off
(3.5 with the model's), in a buffer of up to 4.5; they draw from a copy (1) by sums in float64 (4). An H100: 14.1."""


@dataclass(frozen=True)
class Memory:
    """Bytes that a speculation needs in addition to the model's weights.

    Attributes:
        weights: of what drafts, as loaded; those that it shares with the model are not counted.
        tables: of lookups, on the host.
        cache_per_token: the model's keys and values for one token of one row, which plain decoding keeps too.
        state_per_row: what recurrent layers keep of a row, however long it is; a second time during a step.
        draft_cache_per_token: the draft's keys and values for one token of one row.
        draft_state_per_row: what the draft's recurrent layers keep of a row; a second time during a step.
        per_node: one node of one row's tree, while it is verified: the model's logits, its distribution and the draft's
            in float32 (accelerators compute with several copies when they sample), the hidden states of all layers
            where some are read, and what recurrent layers, the draft's too, keep of it until the commit.
    """

    weights: int
    tables: int
    cache_per_token: int
    state_per_row: int
    draft_cache_per_token: int
    draft_state_per_row: int
    per_node: int

    def added(self, num_tokens: int, num_rows: int = 1, num_nodes: int = 16) -> int:
        """Bytes beyond plain decoding for rows of `num_tokens` tokens, prompt included, and trees of `num_nodes`.

        Raises `ConfigError`: one of them is not a positive int.
        """
        check_count("num_tokens", num_tokens)
        node = self.per_node + self.cache_per_token + self.draft_cache_per_token
        states = self.state_per_row + 2 * self.draft_state_per_row
        per_row = check_count("num_nodes", num_nodes) * node + num_tokens * self.draft_cache_per_token + states
        return self.weights + self.tables + check_count("num_rows", num_rows) * per_row

    def __str__(self) -> str:
        draft = f"{megabytes(self.weights + self.tables)} of draft weights and tables"
        caches = (
            f"{self.cache_per_token:,} bytes in the model's cache and {self.draft_cache_per_token:,} in the draft's"
        )
        return f"{draft}; a token takes {caches}, a node of a tree {self.per_node:,} more while it is verified"


def estimate_memory(model: PreTrainedModel, speculation: TreeSpeculation) -> Memory:
    """The memory of a speculation on a model: `print(treespec.speedup.estimate_memory(model, speculation))`.

    The caches' sizes are those that passes over one and two tokens leave, recurrent layers' also those of small trees.

    Raises `ConfigError`: not a `TreeSpeculation`, or not a model.
    """
    if not isinstance(speculation, TreeSpeculation):
        raise ConfigError(f"expected a TreeSpeculation, got {type(speculation).__name__}")
    facts, parts = model_facts(model), list(_parts(speculation.drafter))
    config, size = facts.config, facts.dtype.itemsize
    states = size * (config.num_hidden_layers + 1) * config.hidden_size
    scorers = [value for part in parts for value in vars(part).values() if isinstance(value, ModelScorer)]
    own, drafts = _kept_by(facts), [_kept_by(scorer.facts) for scorer in scorers]
    weights, lookups = draft_bytes(facts.model, speculation.drafter)
    tables = TABLES["cpu" if facts.device.type == "cpu" else "accelerator"]
    per_node = facts.num_logits * (size + tables * PROBABILITY) + sum(kept.per_node for kept in (own, *drafts))
    return Memory(
        weights,
        lookups,
        own.per_token,
        own.per_row,
        sum(kept.per_token for kept in drafts) + sum(_head_cache(part, max(own.layers, default=0)) for part in parts),
        sum(kept.per_row for kept in drafts),
        per_node + states * any(isinstance(part, FeatureDrafter) for part in parts),
    )


def draft_bytes(model: PreTrainedModel, drafter: Drafter) -> tuple[int, int]:
    """The bytes of a drafter's weights without those of the model, and of its tables; nothing is run."""
    own: dict[int, int] = {}
    tables, vocab_size = 0, num_logits(model)
    for part in _parts(drafter):
        for value in vars(part).values():
            own |= _storages(_weights(value))
        if isinstance(part, TokenRecycling):
            tables += TOKEN_ID * vocab_size * min(part.num_candidates, vocab_size)
    shared = _storages(_weights(unwrapped(model)))
    return sum(num for address, num in own.items() if address not in shared), tables


def megabytes(count: int) -> str:
    """A number of bytes for people."""
    return f"{count / 1e6:,.0f} MB" if count >= 1e6 else f"{count / 1e3:,.0f} kB"


def _parts(drafter: Any) -> Iterator[Any]:
    """A drafter, and those that it holds."""
    yield drafter
    for value in vars(drafter).values():
        for held in value if isinstance(value, list) else [value]:
            if isinstance(held, Drafter) and not isinstance(held, type):
                yield from _parts(held)


def _weights(value: Any) -> Iterator[Tensor]:
    """All parameters and buffers of a module, of the model of a scorer, or of Medusa's heads."""
    if isinstance(value, nn.Module):
        yield from (*value.parameters(), *value.buffers())
    elif isinstance(value, ModelScorer):
        yield from _weights(value.facts.model)
    elif isinstance(value, MedusaHeads):
        for head in value.heads:
            yield from (head.output, *(tensor for block in head.blocks for tensor in block if tensor is not None))


def _storages(tensors: Iterable[Tensor]) -> dict[int, int]:
    """Bytes by address: several tensors may share memory, and those made of others have none of their own."""
    found = {}
    for tensor in tensors:
        try:
            storage = tensor.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
        except RuntimeError:
            found[id(tensor)] = tensor.nbytes
    return found


def _head_cache(part: Any, layer_of_model: int) -> int:
    """Bytes per token of what a head keeps of a text, 0 of other drafters."""
    if isinstance(part, Mtp):
        kinds = [type(module).__name__ for module in part.head.modules()]
        return layer_of_model * sum(kind.endswith("Attention") for kind in kinds)
    if isinstance(part, HeadDrafter):
        layer, layers = part.head.config.layer, part.head.get_submodule("layers")
        size = 2 * layer.num_key_heads * layer.head_dim * next(layers.parameters()).itemsize
        return size * len(list(layers.children()))
    return 0


class _Kept(NamedTuple):
    """Bytes that a model keeps of a token, layer by layer, of a row whatever its length, and of a pending node."""

    layers: list[int]
    per_row: int
    per_node: int

    @property
    def per_token(self) -> int:
        return sum(self.layers)


@torch.no_grad()
def _kept_by(facts: ModelFacts) -> _Kept:
    scorer = make_scorer(facts) if keeps_states(facts.model) else None
    one, two = (_layer_bytes(facts, scorer, length) for length in (1, 2))
    layers = [more - less for less, more in zip(one, two, strict=True)]
    return _Kept(layers, sum(one) - sum(layers), _pending_bytes(scorer) if isinstance(scorer, StateScorer) else 0)


def _layer_bytes(facts: ModelFacts, scorer: Any, length: int) -> list[int]:
    """The bytes of the cache of a text in every layer."""
    ids = torch.zeros(1, length, dtype=torch.int64, device=facts.device)
    if scorer is None:
        with evaluation_mode(facts.model):
            found: Any = cache_in(facts.model(ids, use_cache=True))
    else:  # Some models keep states elsewhere; their scorers do not.
        scorer.prefill(ids, ids == 0)
        found = scorer.cache
    return [sum(one.nbytes for value in vars(layer).values() for one in _of_layer(value)) for layer in found.layers]


def _of_layer(value: Any) -> list[Tensor]:
    """Keys, values or states among the attributes of a cache's layer, not the buffers that they are views of."""
    return [one for one in (value.values() if isinstance(value, dict) else [value]) if isinstance(one, Tensor)]


def _pending_bytes(scorer: StateScorer) -> int:
    """The bytes that recurrent layers keep of a node: what a third one adds."""
    sizes, ids = [], torch.zeros(1, 3, dtype=torch.int64, device="cpu")
    scorer.prefill(ids.to(scorer.device), (ids == 0).to(scorer.device))
    for num in (2, 3):
        scorer.extend(ids[:, :num], torch.arange(-1, num - 1, device="cpu")[None])
        sizes.append(sum(_storages(_tensors(scorer.kept_of_nodes)).values()))
        scorer.commit([()])
    return sizes[1] - sizes[0]


def _tensors(value: Any) -> Iterator[Tensor]:
    """All tensors in lists and tuples."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _tensors(one)
