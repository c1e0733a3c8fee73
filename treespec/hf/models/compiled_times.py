"""Whether compiled passes are faster than plain ones, for `compile="auto"`: measured once per model and machine."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

import torch
from tqdm.auto import tqdm

from treespec.hf.introspect import ModelFacts
from treespec.hf.models.make_scorer import make_scorer
from treespec.hf.models.pass_times import machine_key, time_pass
from treespec.hf.models.static_scorer import StaticScorer
from treespec.hf.user_cache import cache_folder, read_kept, write_kept

FORMAT = 2
NUM_ROUNDS = 7


class PassPair(NamedTuple):
    """Milliseconds of a pass over a growing cache, and of a compiled one over a static cache."""

    plain_ms: float
    compiled_ms: float


def kept_times(facts: ModelFacts, num_slots: int) -> dict[int, PassPair]:
    """What was measured before with this many slots, by number of nodes."""
    kept = read_kept(_path(facts, num_slots), _as_times, "it holds no times") or {}
    return facts.ranks.agree("compiled passes", kept)


@torch.no_grad()
def measure_times(
    facts: ModelFacts, compiled: StaticScorer, num_slots: int, counts: Sequence[int]
) -> dict[int, PassPair]:
    """Medians of paired passes of one row over so many nodes, behind a text that fills half of the slots; kept.

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
        write_kept(_path(facts, num_slots), {"format": FORMAT, **about, "plain_and_compiled_ms": times})
    return found


def is_faster_compiled(times: Mapping[int, PassPair], counts: Iterable[int]) -> bool:
    """Whether one pass over each of these numbers of nodes takes less time compiled."""
    pairs = [times[count] for count in counts]
    return sum(pair.compiled_ms for pair in pairs) < sum(pair.plain_ms for pair in pairs)


def _path(facts: ModelFacts, num_slots: int) -> Any:
    return cache_folder() / "compiled" / f"{machine_key(facts)}-{num_slots}.json"


def _as_times(data: Any) -> dict[int, PassPair] | None:
    times = {int(count): PassPair(*map(float, pair)) for count, pair in data["plain_and_compiled_ms"].items()}
    return times if data["format"] == FORMAT else None
