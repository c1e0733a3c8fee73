"""`CompiledTarget`: passes over new nodes through `torch.compile`, for `TreeSpeculation(compile=...)`.

A compiled pass has fixed shapes: a static cache, widths rounded up to powers of two. Calls of many lengths share few
sizes of the cache, and the same cache again: CUDA graphs have recorded its addresses.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from importlib import import_module
from statistics import median
from typing import Any, NamedTuple

import torch
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from treespec.checks import AUTO
from treespec.errors import ConfigError, UnsupportedModelError
from treespec.hf.introspect import ModelFacts, active_adapters, model_facts
from treespec.hf.models.make_scorer import make_scorer
from treespec.hf.models.measuring import machine_key, time_pass
from treespec.hf.models.static_scorer import StaticScorer
from treespec.hf.user_cache import cache_folder, read_kept, write_kept
from treespec.hf.weights import pack_weights
from treespec.policies.control.contract import StepControl
from treespec.protocols import TreePolicy

MAX_SHAPES = 64
"""A batch whose rows finish one by one soon exceeds PyTorch's own limit of 8, above which passes run uncompiled."""

LEAST_SLOTS = 256
TIMES_FORMAT = 2
NUM_ROUNDS = 7


def compiled_scorer(
    model: PreTrainedModel, num_slots: int, compile: bool | Mapping[str, Any], hidden_layers: Sequence[int] = ()
) -> StaticScorer:
    """A scorer over a static cache of `num_slots` slots; `compile`: options of `torch.compile`, False for none.

    Raises `TreespecError`: see `make_scorer`.
    """
    options = {} if isinstance(compile, bool) else compile
    settings = {"dynamic": False, "recompile_limit": MAX_SHAPES, **options}
    compiled: Any = model if compile is False else _compiled_model(model, settings)
    return StaticScorer(make_scorer(compiled, max_cache_len=num_slots, hidden_layers=hidden_layers))


def _compiled_model(model: PreTrainedModel, settings: dict[str, Any]) -> Any:
    if "recompile_limit" not in inspect.signature(torch.compile).parameters:  # Before torch 2.12 all share one limit.
        dynamo: Any = import_module("torch._dynamo.config")
        dynamo.recompile_limit = max(dynamo.recompile_limit, settings.pop("recompile_limit"))
    return torch.compile(model, **settings)


class CompiledTarget:
    """The scorer of the model that was decoded with last, kept with its cache and its compiled passes.

    Args:
        options: arguments of `torch.compile`, such as {"mode": "reduce-overhead"} for CUDA graphs.
        is_measured: only where compiled passes were measured to be faster, once per model and machine.
    """

    def __init__(self, options: Mapping[str, Any], is_measured: bool = False) -> None:
        self.options, self.is_measured = dict(options), is_measured
        self._key: tuple[Any, ...] | None = None
        self._scorer: StaticScorer | None = None

    @classmethod
    def of(cls, compile: bool | str | Mapping[str, Any]) -> CompiledTarget | None:
        """The target for the argument `compile`; None: passes run unchanged. Raises `ConfigError`: another value."""
        if isinstance(compile, bool):
            return cls({}) if compile else None
        if compile == AUTO:
            return cls({}, is_measured=True)
        if not isinstance(compile, Mapping):
            raise ConfigError(
                f"compile must be True, False, {AUTO!r} or a mapping of torch.compile's options, got {compile!r}"
            )
        return cls(compile)

    def __getstate__(self) -> dict[str, Any]:
        """Copies compile for themselves."""
        return {"options": self.options, "is_measured": self.is_measured, "_key": None, "_scorer": None}

    def scorer(
        self, model: PreTrainedModel, num_tokens: int, policy: TreePolicy, hidden_layers: Sequence[int]
    ) -> StaticScorer | None:
        """For texts of at most `num_tokens` tokens and a policy's trees; None: plain passes were measured to be faster.

        Raises `UnsupportedModelError`: the model cannot verify trees from a static cache.
        """
        # The text, a padded tree, and the holes of rows that accept different lengths.
        num_slots = max(_power_of_two(num_tokens + 2 * _power_of_two(policy.max_nodes)), LEAST_SLOTS)
        if self.is_measured and not self._is_faster(model, num_slots, policy, hidden_layers):
            self._scorer = None
            return None
        return self._compiled(model, num_slots, hidden_layers)

    def _compiled(self, model: PreTrainedModel, num_slots: int, hidden_layers: Sequence[int]) -> StaticScorer:
        """The scorer of the last call, if it fits; it reads weights that were changed since."""
        key = (id(model), active_adapters(model.modules()), model.dtype, num_slots, tuple(hidden_layers))
        pack_weights(model)
        if self._scorer is None or self._key != key:
            self._scorer = None  # Its cache is freed before the next one is made.
            try:
                self._scorer = compiled_scorer(model, num_slots, self.options, hidden_layers)
            except UnsupportedModelError as error:
                raise UnsupportedModelError(f"compile= needs a static cache: {error}") from error
            self._key = key
        return self._scorer

    def _is_faster(
        self, model: PreTrainedModel, num_slots: int, policy: TreePolicy, hidden_layers: Sequence[int]
    ) -> bool:
        """Whether the policy's passes take less time compiled; False for models that cannot be compiled."""
        facts, counts = model_facts(model), _widths(policy)
        times = kept_times(facts, num_slots)
        if missing := [count for count in counts if count not in times]:
            try:
                times |= measure_times(facts, self._compiled(model, num_slots, hidden_layers), num_slots, missing)
            except UnsupportedModelError:
                return False
        # One pass over each of these numbers of nodes.
        return sum(times[count].compiled_ms - times[count].plain_ms for count in counts) < 0


def _widths(policy: TreePolicy) -> list[int]:
    """Numbers of nodes of the passes that are compared: of a policy's trees, all up to them where it chooses."""
    widest = _power_of_two(policy.max_nodes)
    return [1 << power for power in range(widest.bit_length())] if isinstance(policy, StepControl) else [widest]


def _power_of_two(count: int) -> int:
    return 1 << max(count - 1, 0).bit_length()


class PassPair(NamedTuple):
    """Milliseconds of a pass over a growing cache, and of a compiled one over a static cache."""

    plain_ms: float
    compiled_ms: float


def kept_times(facts: ModelFacts, num_slots: int) -> dict[int, PassPair]:
    """The stored times of passes with this many slots, by number of nodes; empty where none are."""
    kept = read_kept(_path(facts, num_slots), _as_times, "it holds no times") or {}
    return facts.ranks.agree("compiled passes", kept)


@torch.no_grad()
def measure_times(
    facts: ModelFacts, compiled: StaticScorer, num_slots: int, counts: Sequence[int]
) -> dict[int, PassPair]:
    """Medians of paired passes of one row over this many nodes, after a text that fills half of the slots; kept.

    Compiling takes most of the time, some ten seconds to a minute per number of nodes: a bar shows how far it is.
    """
    plain = make_scorer(facts)
    ids = torch.ones(1, num_slots // 2, dtype=torch.int64, device=plain.device)
    for scorer in (plain, compiled):
        scorer.prefill(ids, torch.ones_like(ids, dtype=torch.bool))
    found = dict[int, PassPair]()
    for count in tqdm(counts, desc="compile and measure passes", leave=False):
        for scorer in (plain, compiled):
            time_pass(scorer, count)
        rounds = [(time_pass(plain, count), time_pass(compiled, count)) for _ in range(NUM_ROUNDS)]
        found[count] = PassPair(*(round(1e3 * median(seconds), 4) for seconds in zip(*rounds, strict=True)))
    found = facts.ranks.agree("compiled passes", found)
    if facts.ranks.index == 0:
        times = {str(count): list(pair) for count, pair in (kept_times(facts, num_slots) | found).items()}
        about = {"model": facts.name, "slots": num_slots}
        write_kept(_path(facts, num_slots), {"format": TIMES_FORMAT, **about, "plain_and_compiled_ms": times})
    return found


def _path(facts: ModelFacts, num_slots: int) -> Any:
    return cache_folder() / "compiled" / f"{machine_key(facts)}-{num_slots}.json"


def _as_times(data: Any) -> dict[int, PassPair] | None:
    times = {int(count): PassPair(*map(float, pair)) for count, pair in data["plain_and_compiled_ms"].items()}
    return times if data["format"] == TIMES_FORMAT else None
