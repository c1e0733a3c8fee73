"""`CompiledTarget`: passes over new nodes through `torch.compile`, for `TreeSpeculation(compile=...)`.

A compiled pass has fixed shapes: a static cache, widths rounded up to powers of two. Calls of many lengths share few
sizes of the cache, and the same cache again: CUDA graphs have recorded its addresses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from treespec.errors import ConfigError, UnsupportedModelError
from treespec.hf.introspect import active_adapters
from treespec.hf.models.make_scorer import make_scorer
from treespec.hf.models.static_scorer import StaticScorer

MAX_SHAPES = 64
"""A batch whose rows finish one by one soon exceeds PyTorch's own limit of 8, above which passes run uncompiled."""

LEAST_SLOTS = 256


def compiled_scorer(
    model: PreTrainedModel, num_slots: int, compile: bool | Mapping[str, Any], hidden_layers: Sequence[int] = ()
) -> StaticScorer:
    """A scorer over a static cache of `num_slots` slots; `compile`: options of `torch.compile`, False for none.

    Raises `TreespecError`: see `make_scorer`.
    """
    options = {} if isinstance(compile, bool) else compile
    settings = {"dynamic": False, "recompile_limit": MAX_SHAPES, **options}
    compiled: Any = model if compile is False else torch.compile(model, **settings)
    return StaticScorer(make_scorer(compiled, max_cache_len=num_slots, hidden_layers=hidden_layers))


class CompiledTarget:
    """The scorer of the model that was decoded with last, kept with its cache and its compiled passes.

    Args:
        options: arguments of `torch.compile`, such as {"mode": "reduce-overhead"} for CUDA graphs.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.options = dict(options)
        self._key: tuple[Any, ...] | None = None
        self._scorer: StaticScorer | None = None

    @classmethod
    def of(cls, compile: bool | Mapping[str, Any]) -> CompiledTarget | None:
        """What the argument `compile` means; None: passes run as they are. Raises `ConfigError`: something else."""
        if isinstance(compile, bool):
            return cls({}) if compile else None
        if not isinstance(compile, Mapping):
            raise ConfigError(f"compile must be True, False or a mapping of torch.compile's options, got {compile!r}")
        return cls(compile)

    def __getstate__(self) -> dict[str, Any]:
        """Copies compile for themselves."""
        return {"options": self.options, "_key": None, "_scorer": None}

    def scorer(self, model: PreTrainedModel, num_tokens: int, max_nodes: int, hidden_layers: Sequence[int]) -> Any:
        """For texts of at most `num_tokens` tokens and trees of at most `max_nodes` nodes.

        Raises `UnsupportedModelError`: the model cannot verify trees from a static cache.
        """
        # The text, a padded tree, and the holes of rows that accept different lengths.
        num_slots = max(_power_of_two(num_tokens + 2 * _power_of_two(max_nodes)), LEAST_SLOTS)
        key = (id(model), active_adapters(model), model.dtype, num_slots, tuple(hidden_layers))
        if self._scorer is None or self._key != key:
            self._scorer = None  # Its cache is freed before the next one is made.
            try:
                self._scorer = compiled_scorer(model, num_slots, self.options, hidden_layers)
            except UnsupportedModelError as error:
                raise UnsupportedModelError(f"compile= needs a static cache: {error}") from error
            self._key = key
        return self._scorer


def _power_of_two(count: int) -> int:
    return 1 << max(count - 1, 0).bit_length()
