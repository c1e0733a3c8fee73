"""`speed_up`: the best of what is at hand for a model, found by itself, and a report of what was found."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers import PreTrainedModel

from treespec.checks import check_flag
from treespec.errors import ConfigError
from treespec.heads.drafting.base import HeadDrafter
from treespec.hf.generation.call import Call
from treespec.hf.generation.output import Output
from treespec.hf.generation.speculation import TreeSpeculation
from treespec.hf.introspect import check_model
from treespec.speedup.kernels import Kernels
from treespec.speedup.memory import draft_bytes, megabytes
from treespec.speedup.plain import FasterWay, can_be_plain, decode_plainly
from treespec.speedup.sources import Found, find_drafters

WIDTH, INDENT = 100, 10


class SpedUp(TreeSpeculation):
    """The result of `speed_up`, a `TreeSpeculation` for one model; `print` shows drafters, kernels, memory and speed.

    Attributes:
        model: the model.
        found: the drafters, and why others are missing.
    """

    def __init__(self, model: PreTrainedModel, found: Found, options: dict[str, Any]) -> None:
        super().__init__(found.drafters, **options)
        self.model, self.found = model, found
        heads = [drafter.head for drafter in found.drafters if isinstance(drafter, HeadDrafter)]
        self._kernels = Kernels(model, heads)
        self._ways: dict[tuple[int, bool], FasterWay] = {}  # By the number of rows, and whether they are sampled.

    @contextmanager
    def _elsewhere(self, call: Call) -> Iterator[Output | None]:
        if self._kernels.advance():  # No other call of this object runs.
            self._ways = {}
        way = self._ways.setdefault((call.num_rows, bool(call.config.do_sample)), FasterWay())
        is_plain, start = way.is_plain and can_be_plain(call), time.perf_counter()
        yield self._plainly(call) if is_plain else None
        way.learn(is_plain, time.perf_counter() - start, self.stats, call.num_rows)

    def _plainly(self, call: Call) -> Output:
        out, self.stats = decode_plainly(call)
        self.steps, self.last_call = [], call.over()
        self.total_stats.add(self.stats)
        return out

    def restore(self) -> None:
        """Give the model's layers their own passes back; what drafts stays."""
        self._kernels.restore()

    def __str__(self) -> str:
        lines = [
            ("model", f"{type(self.model).__name__} {self.model.config.name_or_path}".strip()),
            ("drafts", "; ".join(self.found.names)),
            *(("not", f"{what}: {why}") for what, why in self.found.missing.items()),
            ("passes", self._kernels.state),
            (
                "memory",
                f"{megabytes(sum(draft_bytes(self.model, self.drafter)))} for what drafts, in addition to the model",
            ),
            ("so far", self._so_far()),
        ]
        return "\n".join(
            textwrap.fill(
                f"{name:{INDENT}}{text}",
                WIDTH,
                subsequent_indent=" " * INDENT,
                break_long_words=False,  # Paths stay whole.
                break_on_hyphens=False,
            )
            for name, text in lines
        )

    def _so_far(self) -> str:
        stats, seconds = self.total_stats, sum(self.total_stats.seconds.values())
        if not stats.num_emitted_tokens:
            return "not called yet"
        rate = f"{stats.num_emitted_tokens} tokens, {1e3 * seconds / stats.num_emitted_tokens:.1f} ms each"
        return f"{rate}, {stats.block_efficiency:.2f} per pass of the model"


def speed_up(model: PreTrainedModel, *, is_download_allowed: bool = False, **options: Any) -> SpedUp:
    """The fastest speculation that is at hand for a model: `model.generate(..., custom_generate=speed_up(model))`.

    What drafts: a trained head, the first that is found in a folder inside the checkpoint's or next to it (under a name
    that begins with the checkpoint's), the checkpoint's own MTP layers, a public head known for it, or the one that
    ships; and lookups, which need none. On CPUs the model's layers run by `treespec.optimize`, where memory allows, and
    the head's in 8 bits, which costs no exactness. Nothing is measured for long: what an earlier run measured is used,
    the rest is learned while decoding; kernels that are not compiled yet are compiled while the first calls run.
    `print` shows what was found; `restore()` undoes what was done to the model.

    Args:
        model: a causal language model, as loaded; any that `TreeSpeculation` serves.
        is_download_allowed: fetch a known head that is not in the hub's cache.
        options: of `TreeSpeculation`, such as `seed` or `tree`; not `drafter`.

    Returns:
        A `TreeSpeculation`, see `SpedUp`. The output stays the model's own: identical tokens when greedy, the same
        distribution when sampling.

    Raises:
        ConfigError: not a model, `drafter` among the options, an option of the wrong kind.
        UnsupportedModelError: an encoder-decoder model, or adapters that learn prompts.
        TypeError: an option that `TreeSpeculation` has not.
    """
    check_model(model)
    check_flag("is_download_allowed", is_download_allowed)
    if "drafter" in options:
        raise ConfigError("speed_up chooses what drafts: give drafters of your own to TreeSpeculation(drafter)")
    return SpedUp(model, find_drafters(model, is_download_allowed), options)
