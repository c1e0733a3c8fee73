"""How long a model's passes take by number of nodes, for `tune`, traces and `diagnose`: measured once per machine."""

import time
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import nn
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from treespec.errors import TreespecError
from treespec.hf.introspect import ModelFacts, model_facts
from treespec.hf.machine import OtherWork, is_busy, is_quiet
from treespec.hf.models.make_scorer import make_scorer
from treespec.hf.models.measuring import FORMAT, machine_key, time_pass
from treespec.hf.user_cache import cache_folder, read_kept, write_kept
from treespec.protocols import Capability

NUM_NODES = (1, 16, 64, 4, 32, 8, 2, 128)
"""In the order in which they are measured, as far as `MOST_SECONDS` reach; the first two in any case."""
NUM_CACHED = 32
NUM_ROUNDS, NUM_MORE = 2, 6
"""Rounds over all numbers of nodes, and further ones over the small ones, which control compares most."""
SMALL = 16
MOST_SECONDS = 4.0
SILENT_SECONDS = 1.0
"""A measurement that takes longer says what it does."""


class Profile(NamedTuple):
    """Measured passes: milliseconds by number of nodes, and the share of the processors that other processes used
    meanwhile (None: unknown)."""

    pass_ms: dict[int, float]
    others_share: float | None = None


_known: WeakKeyDictionary[nn.Module, dict[str, Profile]] = WeakKeyDictionary()


def pass_profile(model: PreTrainedModel | ModelFacts, *, is_remeasured: bool = False) -> Profile:
    """Milliseconds of a pass of one row by nodes of its tree, and the load then; no times of models without drafts.

    The first call for a model on a machine measures for at most some `MOST_SECONDS`; the result is kept in
    `$XDG_CACHE_HOME/treespec/passes` (or `~/.cache/...`), keyed by the modules' kinds and shapes (kernels of
    `treespec.optimize` included), where they are (devices, memory, disk, processes), dtype, threads, processor and
    PyTorch's version. What was measured while other processes used the machine is measured again by the next process
    that finds the machine quiet.

    Args:
        model: on any device.
        is_remeasured: measure again what is known already, for instance because the machine was busy then.
    """
    facts = model_facts(model)
    key = machine_key(facts)
    known = _known.setdefault(facts.model, {})
    if key in known and not is_remeasured:
        return known[key]
    path = cache_folder() / "passes" / f"{key}.json"
    kept = None if is_remeasured else read_kept(path, _as_profile, "it holds no times")
    if kept is not None and is_busy(kept.others_share) and is_quiet():
        kept = None
    found = facts.ranks.agree("pass times", kept)
    if found is None:
        work = OtherWork()
        times = measure(facts)
        found = facts.ranks.agree("pass times", Profile(times, work.share()))
        if found.pass_ms and facts.ranks.index == 0:
            about = {"model": facts.name, "others_share": found.others_share}
            write_kept(path, {"format": FORMAT, **about, "pass_ms": found.pass_ms})
    known[key] = found
    return found


@torch.no_grad()
def measure(facts: ModelFacts) -> dict[int, float]:
    """Milliseconds by number of nodes, the best of some rounds; nothing for a model that scores single tokens only.

    A pass over more nodes could score fewer as well, so a time above that of a larger pass is noise, and is lowered.
    """
    scorer = make_scorer(facts)
    room = NUM_CACHED if scorer.max_positions is None else min(NUM_CACHED, scorer.max_positions // 2)
    if scorer.capability == Capability.PLAIN or room < 1:
        return {}
    ids = torch.ones(1, room, dtype=torch.int64, device=scorer.device)
    scorer.prefill(ids, torch.ones_like(ids, dtype=torch.bool))
    times: dict[int, float] = {}
    what = f"measure passes of {facts.name}, once on this machine"
    bar = tqdm(desc=what, unit=" passes", delay=SILENT_SECONDS, leave=False, disable=facts.ranks.index > 0)
    end = time.perf_counter() + MOST_SECONDS
    # All sizes in turns, so that other load on the machine slows all alike; first passes may compile and do not count.
    for number in range(NUM_ROUNDS + NUM_MORE + 1):
        known = [count for count in times if number <= NUM_ROUNDS or count <= SMALL]
        for count in NUM_NODES if number < 2 else known:
            is_late = facts.ranks.agree("clock", time.perf_counter() > end)
            if is_late and not (number < 2 and count in NUM_NODES[:2]):
                continue
            try:
                ms = round(1e3 * time_pass(scorer, count), 4)
            except TreespecError:
                break  # A chain of this length does not fit into the model's positions.
            bar.update()
            if number > 0:
                times[count] = min(ms, times.get(count, ms))
    bar.close()
    return {count: min(ms for other, ms in times.items() if other >= count) for count in sorted(times)}


def _as_profile(data: Any) -> Profile | None:
    """The profile in a cache file's data; None if it is not a profile, or one of another format."""
    times = {int(count): float(ms) for count, ms in data["pass_ms"].items()}
    is_fit = data["format"] == FORMAT and times and min(times) > 0 and min(times.values()) > 0
    return Profile(times, data["others_share"]) if is_fit else None
