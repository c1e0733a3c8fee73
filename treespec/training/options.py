"""Everything that a training run can be told."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from treespec.checks import check_count, check_number
from treespec.errors import ConfigError


class Size(NamedTuple):
    """What a kind of drafter has unless told otherwise: how many tokens ahead it drafts, and its decoder layers."""

    num_depths: int
    num_layers: int


KINDS = {"eagle3": Size(4, 1), "dflash": Size(7, 2), "draft_model": Size(4, 5)}
_OF_HEADS = ("draft_vocab_size", "hidden_layers", "has_feature_norms", "is_initialised", "noise")
_OF_BLOCKS = ("markov_rank", "num_anchors", "mask_token")
UNREAD = {"eagle3": _OF_BLOCKS, "dflash": (), "draft_model": _OF_HEADS + _OF_BLOCKS}
"""Settings that are of other kinds and change nothing."""
MAX_SEED = 2**40
"""Seeds of steps are multiples of the run's, and must stay below what a generator takes."""


@dataclass(frozen=True)
class TrainingConfig:
    """How a drafter is trained.

    Args:
        kind: "eagle3", a head unrolled on its own features; "dflash", a DSpark head that guesses all depths at once; or
            "draft_model", some of the target's own layers.
        draft_vocab_size: tokens that a head can draft, the most frequent ones of the texts; a draft model has all.
        num_layers: decoder layers of the drafter; None: see `KINDS`.
        hidden_layers: the target's hidden states that a head fuses, see `HiddenStates`; None: EAGLE-3's choice.
        has_feature_norms: one RMS norm per fused hidden state.
        num_depths: how many tokens ahead the drafter is trained: EAGLE-3's unrolled steps, a block's size; None: see
            `KINDS`.
        markov_rank: of a block head's bigram bias, 0 for none.
        num_anchors: blocks per text and step, at random places.
        mask_token: stands in blocks where tokens are to be guessed; None: one that the texts do not use.
        depth_decay: the loss at depth d (from 1) counts depth_decay^(d - 1).
        tv_weight: the total variation's share of the loss; the cross-entropy has the rest.
        tv_start: the share of the run after which the total variation counts.
        is_initialised: the drafter's layers start from the target's where shapes allow.
        start: a run's folder, whose weights are this one's first ones; of the same kind and sizes, and with
            the same hidden states and mask token.
        is_head_frozen: the rows of the target's output head stay as they are, and are left out of a head's files.
        num_steps: optimiser steps; None: as many as `minutes` or `num_epochs` allow.
        minutes: of wall-clock time in the loop, evaluations included; the schedule then follows the clock. Not beside
            `num_steps`.
        num_epochs: passes over the texts where neither of the other two is given.
        batch_size: texts per step.
        max_length: longer texts are cut, and those longer than the target has positions.
        learning_rate: the peak; cosine to zero after `warmup_steps`.
        warmup_steps: linear.
        weight_decay: AdamW's, on matrices only.
        betas: AdamW's.
        noise: normal noise on the states that a head reads, in units of their root mean square.
        clip: the largest norm of the gradient.
        num_candidates: the target's distribution is kept as so many of its most probable tokens.
        max_cache_gb: features on disk; texts beyond it are read by the target again whenever they are needed.
        num_held_out: texts that are not trained on; at most a fifth of all.
        eval_every: steps between evaluations; there is always one at the end.
        save_every: steps between checkpoints.
        is_mixed: everything is multiplied in bfloat16; weights and sums stay float32.
        seed: of everything drawn.

    Raises:
        ConfigError: an unknown kind, a number out of range, a block of one token, both `num_steps` and `minutes`, or a
            `start` without `is_head_frozen`: rows of another run may be those of other tokens.
    """

    kind: str = "eagle3"
    draft_vocab_size: int = 16384
    num_layers: int | None = None
    hidden_layers: tuple[int, ...] | None = None
    has_feature_norms: bool = False
    num_depths: int | None = None
    markov_rank: int = 64
    num_anchors: int = 64
    mask_token: int | None = None
    depth_decay: float = 0.8
    tv_weight: float = 0.0
    tv_start: float = 0.0
    is_initialised: bool = True
    start: str | None = None
    is_head_frozen: bool = True
    num_steps: int | None = None
    minutes: float | None = None
    num_epochs: float = 1.0
    batch_size: int = 8
    max_length: int = 512
    learning_rate: float = 6e-4
    warmup_steps: int = 20
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.95)
    noise: float = 0.0
    clip: float = 1.0
    num_candidates: int = 64
    max_cache_gb: float = 8.0
    num_held_out: int = 32
    eval_every: int = 200
    save_every: int = 200
    is_mixed: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"kind must be one of {', '.join(KINDS)}, got {self.kind!r}")
        counts = "draft_vocab_size num_anchors batch_size max_length num_candidates num_held_out"
        for name in [*counts.split(), "eval_every", "save_every"]:
            check_count(name, getattr(self, name))
        for name in ("num_steps", "num_depths", "num_layers"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))
        if self.max_length < 2 + self.depths:
            raise ConfigError(f"max_length must be above num_depths + 1 = {self.depths + 1}, got {self.max_length}")
        if self.kind == "dflash" and self.depths < 2:
            raise ConfigError(f"a block guesses two tokens at least: num_depths must be 2 or more, got {self.depths}")
        self._check_numbers()
        layers = self.hidden_layers or ()
        if not all(isinstance(layer, int) for layer in layers) or len(set(layers)) < len(layers):
            raise ConfigError(f"hidden_layers must be different ints, got {self.hidden_layers}")
        if self.num_steps is not None and self.minutes is not None:
            raise ConfigError(f"num_steps={self.num_steps} and minutes={self.minutes} exclude each other: give one")
        if self.start is not None and not self.is_head_frozen:
            raise ConfigError("a run with a start keeps the output head's rows: is_head_frozen must be true")
        if self.start is not None and not isinstance(self.start, str):
            raise ConfigError(f"start must be a folder's name, got {self.start!r}")

    def _check_numbers(self) -> None:
        for name in ("minutes", "num_epochs", "learning_rate", "clip", "depth_decay"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), lambda value: 0 < value < math.inf, "be positive and finite")
        for name in ("weight_decay", "max_cache_gb", "noise"):
            check_number(name, getattr(self, name), lambda value: value >= 0, "not be negative")
        for name in ("warmup_steps", "markov_rank"):
            wanted = "be an int that is not negative"
            check_number(name, getattr(self, name), lambda value: type(value) is int and value >= 0, wanted)
        for name in ("tv_weight", "tv_start", "depth_decay"):
            check_number(name, getattr(self, name), lambda value: 0 <= value <= 1, "be in [0, 1]")
        if len(self.betas) != 2:
            raise ConfigError(f"betas must be two numbers, got {self.betas}")
        for beta in self.betas:
            check_number("betas", beta, lambda value: 0 <= value < 1, "be two numbers in [0, 1)")
        is_seed = type(self.seed) is int and abs(self.seed) <= MAX_SEED
        check_number("seed", self.seed, lambda _: is_seed, "be an int of at most 2^40")

    @property
    def depths(self) -> int:
        """How many tokens ahead the drafter is trained."""
        return self.num_depths or KINDS[self.kind].num_depths

    @property
    def layers(self) -> int:
        """Decoder layers of the drafter."""
        return self.num_layers or KINDS[self.kind].num_layers


def parse_settings(settings: Iterable[str], kind: str | None = None) -> dict[str, Any]:
    """`name=value` lines as arguments of `TrainingConfig`: numbers, true and false, `2,15,27` for several, none.

    Args:
        settings: the lines.
        kind: of drafter, where they are for one that no line names.

    Raises:
        ConfigError: no such name, a value of another type, or a setting that the kind does not read.
    """
    kinds = {f.name: str(f.type) for f in fields(TrainingConfig)}
    parsed: dict[str, Any] = {}
    for setting in settings:
        name, _, text = setting.partition("=")
        if name not in kinds:
            raise ConfigError(f"there is no setting {name!r}; known are {', '.join(kinds)}")
        parsed[name] = _parse(name, kinds[name], text.strip())
    kind = parsed.get("kind", kind)
    for name in sorted(set(parsed) & set(UNREAD.get(kind or "", ()))):
        raise ConfigError(f"{name} is no setting of a drafter of the kind {kind}: leave it out")
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
