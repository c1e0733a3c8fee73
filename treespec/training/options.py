"""The settings of a training run, and the kinds of drafters that can be trained."""

from __future__ import annotations  # Settings are parsed by the text of their types.

import ast
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from transformers import PreTrainedModel

from treespec.checks import check_count, check_flag, check_number, check_share
from treespec.errors import ConfigError
from treespec.registry import Registry
from treespec.training.objective import Learner
from treespec.training.text.texts import Texts

BLOCKS_ONLY = ("markov_rank", "num_anchors", "mask_token")  # Settings of drafters that draft all depths at once.


class TrainingKind(NamedTuple):
    """One kind of drafter in training; settings, runs, model cards and commands ask it and know no kind's name."""

    name: str  # In model cards.
    make: Callable[[PreTrainedModel, Texts, TrainingConfig], Learner]  # With trained files if `start` has them.
    num_depths: int  # Tokens ahead, if the settings leave that open.
    num_layers: int  # Decoder layers, likewise.
    unused: tuple[str, ...] = BLOCKS_ONLY  # Settings that do nothing.
    is_block: bool = False  # It drafts all depths at once, two or more.
    is_model: bool = False  # Its files are a model's, which needs a tokenizer with it.
    load: str = 'treespec.load_drafter("THIS FOLDER", model)'  # The code that loads its files, in model cards.
    files: str | None = None  # A pattern of trained files in `start`, which training can begin with.
    own: str | None = None  # The `start` that means the target's own files.
    drafter: type[Any] | None = None  # The class that such files are loaded as, which `adapt` trains further.


KINDS: Registry[TrainingKind] = Registry(
    "kind of drafter in training",
    {name: f"treespec.training.{name}:KIND" for name in ("eagle3", "dflash", "mtp", "draft_model")},
)


@dataclass(frozen=True)
class TrainingConfig:
    """How a drafter is trained.

    Args:
        kind: "eagle3", a head unrolled on its own features; "dflash", a DSpark head that drafts all depths at once;
            "mtp", a layer for multi-token prediction in Qwen's layout, see `load_mtp`; or "draft_model", some of the
            target's own layers.
        draft_vocab_size: tokens that a head can draft, the most frequent ones of the texts; other kinds have all.
        num_layers: decoder layers of the drafter; None: the kind's usual number.
        hidden_layers: the target's hidden states that a head fuses, see `HiddenStates`; None: EAGLE-3's choice.
        num_depths: tokens ahead: EAGLE-3's unrolled steps, a DSpark head's block size; None: as `num_layers`.
        markov_rank: of a DSpark head's bigram bias, 0 for no bias.
        num_anchors: a DSpark head's blocks per text and step, at random positions.
        mask_token: stands in blocks for the tokens to be drafted; None: one that the texts do not use.
        depth_decay: the loss at depth d (from 1) has the weight depth_decay^(d - 1).
        tv_weight: the weight of the total variation in the loss; the cross-entropy has the rest.
        tv_start: the share of the run after which the total variation counts.
        is_initialised: the drafter's layers start from the target's where shapes allow.
        start: the folder of another run, whose weights are this run's first ones, or of a trained EAGLE-3 head's files;
            of the same kind and sizes, with the same hidden states and mask token.
        num_steps: optimiser steps; None: until `minutes` are over, or else one pass over the texts.
        minutes: of wall-clock time, evaluations included, instead of `num_steps`; the schedule follows the clock.
        max_length: longer texts are cut, as are those longer than the target has positions.
        learning_rate: the peak; cosine to zero after `warmup_steps` of linear increase.
        noise: normal noise on the states that a head reads, in units of their root mean square.
        max_cache_gb: features on disk; the target reads other texts again whenever they are needed.
        num_held_out: texts that are not trained on; at most a fifth of all.
        eval_every: steps between evaluations; there is always one at the end.
        save_every: steps between checkpoints.
        is_mixed: multiply in bfloat16; weights and sums stay float32.

    Raises `ConfigError`: an unknown kind, a number out of range, a block of one token, or `num_steps` with `minutes`.
    """

    kind: str = "eagle3"
    draft_vocab_size: int = 16384
    num_layers: int | None = None
    hidden_layers: tuple[int, ...] | None = None
    num_depths: int | None = None
    markov_rank: int = 64
    num_anchors: int = 64
    mask_token: int | None = None
    depth_decay: float = 0.8
    tv_weight: float = 0.0
    tv_start: float = 0.0
    is_initialised: bool = True
    start: str | None = None
    num_steps: int | None = None
    minutes: float | None = None
    batch_size: int = 8
    max_length: int = 512
    learning_rate: float = 6e-4
    warmup_steps: int = 20
    noise: float = 0.0
    max_cache_gb: float = 8.0
    num_held_out: int = 32
    eval_every: int = 200
    save_every: int = 200
    is_mixed: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"kind must be one of {', '.join(KINDS)}, got {self.kind!r}")
        self._check_numbers()
        if self.max_length < 2 + self.depths:
            raise ConfigError(f"max_length must be above num_depths + 1 = {self.depths + 1}, got {self.max_length}")
        if KINDS[self.kind].is_block and self.depths < 2:
            raise ConfigError(f"num_depths must be 2 or more for a block, got {self.depths}")
        if self.num_steps is not None and self.minutes is not None:
            raise ConfigError(f"num_steps={self.num_steps} and minutes={self.minutes} exclude each other: give one")
        if self.start is not None and not isinstance(self.start, str):
            raise ConfigError(f"start must be a folder's name, got {self.start!r}")

    def _check_numbers(self) -> None:
        counts = "draft_vocab_size num_anchors batch_size max_length num_held_out eval_every save_every"
        optional = [name for name in ("num_steps", "num_depths", "num_layers") if getattr(self, name) is not None]
        for name in [*counts.split(), *optional]:
            check_count(name, getattr(self, name))
        for name in ["learning_rate", "depth_decay", *(["minutes"] if self.minutes is not None else [])]:
            check_number(name, getattr(self, name), lambda value: 0 < value < math.inf, "be positive and finite")
        for name in ("warmup_steps", "markov_rank", "seed", *(["mask_token"] if self.mask_token is not None else [])):
            check_count(name, getattr(self, name), least=0)
        for name in ("max_cache_gb", "noise"):
            check_number(name, getattr(self, name), lambda value: value >= 0, "not be negative")
        for name in ("tv_weight", "tv_start", "depth_decay"):
            check_share(name, getattr(self, name))
        for name in ("is_initialised", "is_mixed"):
            check_flag(name, getattr(self, name))

    @property
    def depths(self) -> int:
        """`num_depths` or its default."""
        return self.num_depths or KINDS[self.kind].num_depths

    @property
    def layers(self) -> int:
        """`num_layers` or its default."""
        return self.num_layers or KINDS[self.kind].num_layers


def parse_settings(settings: Iterable[str], kind: str | None = None) -> dict[str, Any]:
    """Turn `name=value` lines into arguments of `TrainingConfig`: numbers, true, false, none, and `2,15,27` for tuples.

    `kind` is the drafter's, unless a setting gives it.

    Raises `ConfigError`: an unknown name, a value of another type, or a setting that does nothing for the kind.
    """
    types = {f.name: str(f.type) for f in fields(TrainingConfig)}
    parsed: dict[str, Any] = {}
    for setting in settings:
        name, _, text = setting.partition("=")
        if name not in types:
            raise ConfigError(f"there is no setting {name!r}; known are {', '.join(types)}")
        parsed[name] = _parse(name, types[name], text.strip())
    kind = parsed.get("kind", kind)
    unused = KINDS[kind].unused if kind is not None and kind in KINDS else ()
    for name in sorted(set(parsed) & set(unused)):
        raise ConfigError(f"{name} does not apply to a drafter of the kind {kind}: leave it out")
    return parsed


def _parse(name: str, kind: str, text: str) -> Any:
    words = {"true": True, "false": False, "none": None}
    try:
        value = words[text.lower()] if text.lower() in words else ast.literal_eval(text)
    except (ValueError, SyntaxError):
        value = text
    if kind.startswith("tuple") and isinstance(value, int):
        value = (value,)
    wanted = {"int": int, "float": (int, float), "bool": bool, "str": str, "tuple": tuple}[re.split(r"\W", kind)[0]]
    is_right = isinstance(value, wanted) and (isinstance(value, bool) == (kind == "bool"))
    if not is_right and not (value is None and "None" in kind):
        raise ConfigError(f"{name} must be {kind}, got {text!r}")
    return value
