"""Ways of decoding compared on the same prompts: interleaved rounds, paired ratios, outputs checked against plain."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, log
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from treespec.hf.models.measuring import FirstTokenClock
from treespec.lab.selftest.agreement import Agreement, Plain, compare, plain_greedy

PLAIN = "plain generate"
RESAMPLES = 10_000
Floats = Sequence[float] | np.ndarray
Item = TypeVar("Item")


@dataclass(frozen=True)
class Run:
    """One call of `generate` for a prompt or a batch of them.

    `rows`: the new tokens of every row, up to its end. `seconds`: of the whole call, `reading` of them until the prompt
    was read, which gave `num_read` tokens, one per row in plain decoding and in treespec's.
    `num_passes`: of the target, the prompt's included.
    """

    rows: list[list[int]]
    seconds: float
    num_passes: int
    reading: float = 0.0
    num_read: int = 0

    @property
    def tokens(self) -> list[int]:
        """The first row, the only one of a single prompt."""
        return self.rows[0]

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.rows))

    @property
    def ms_per_token(self) -> float:
        return 1e3 * self.seconds / self.num_tokens

    @property
    def tokens_per_pass(self) -> float:
        """Tokens per pass of a row, on average."""
        return self.num_tokens / self.num_passes / len(self.rows)


Runs = dict[str, dict[str, list[Run]]]
"""By contestant and prompt, one run per round."""

Agreements = dict[str, dict[str, Agreement]]
"""By contestant and prompt, the worst agreement with plain greedy decoding over the rounds."""


def timed_call(model: Any, inputs: Mapping[str, Tensor], options: Mapping[str, Any]) -> Run:
    """Call `generate` and time it.

    Args:
        inputs: `input_ids` int64 [B, P] and what belongs to them.
        options: further arguments of `generate`. How long the prompt was read is in the statistics of a speculation as
            `custom_generate`; without one a stopping criterion finds out, and `options` may have no other.
    """
    width, speculation = inputs["input_ids"].shape[1], options.get("custom_generate")
    passes: list[Any] = []
    hook = model.register_forward_pre_hook(lambda module, _: passes.append(module))
    try:
        start, clock = perf_counter(), FirstTokenClock()
        # Speculation asks criteria after every token, which would cost time.
        criteria = {} if speculation is not None else {"stopping_criteria": [clock]}
        out = model.generate(**inputs, **criteria, **options)
        new = out[:, width:].tolist()  # On accelerators this waits for the output.
        seconds = perf_counter() - start
    finally:
        hook.remove()
    ends = set(np.ravel(model.generation_config.eos_token_id).tolist())  # One token, several or None.
    rows = [up_to_end(row, ends) for row in new]
    reading, num_read = clock.seconds, len(rows) * max(clock.length - width, 0)
    if speculation is not None:
        reading, num_read = speculation.stats.seconds["prefill"], len(rows)
    return Run(rows, seconds, len(passes), reading, num_read)


def up_to_end(row: list[int], ends: set[int]) -> list[int]:
    """A row without what pads it after its end-of-sequence token, which stays."""
    return row[: next((number for number, token in enumerate(row, start=1) if token in ends), len(row))]


@dataclass(frozen=True)
class Contestant:
    """A way of decoding: `options()` makes the arguments of `generate` that set it apart, fresh for every round.

    `model`: another one than the bench's, such as the same without faster layers.
    """

    name: str
    options: Callable[[], dict[str, Any]]
    model: Any = None

    def start(self, bench: "Bench") -> Callable[[str], Run]:
        """Return a function that decodes the bench's prompts by name in one round."""
        options = self.options()
        return lambda prompt: bench.decode(prompt, options, self.model)


@dataclass
class Bench:
    """The model, the prompts (arguments of `generate` by name) and what every contestant gets alike.

    `sampling`: arguments of `generate`; `reference` and `agreements` are for greedy decoding of single prompts.
    `seed`: PyTorch's random numbers start from it, and the number of the prompt, at every call.
    """

    model: Any
    inputs: Mapping[str, Mapping[str, Tensor]]
    num_new: int
    sampling: Mapping[str, Any] = field(default_factory=lambda: {"do_sample": False})
    seed: int | None = None

    def decode(self, prompt: str, options: Mapping[str, Any], model: Any = None) -> Run:
        """Decode and time it."""
        if self.seed is not None:
            torch.manual_seed(self.seed + list(self.inputs).index(prompt))
        options = {"max_new_tokens": self.num_new, **self.sampling, **options}
        return timed_call(self.model if model is None else model, self.inputs[prompt], options)

    def reference(self, prompt: str) -> Plain:
        """The plain continuation with its logit gaps; untimed, so it warms the model up as well."""
        return plain_greedy(self.model, dict(self.inputs[prompt]), self.num_new)

    def agreements(self, plains: Mapping[str, Plain], runs: Mapping[str, Sequence[Run]]) -> dict[str, Agreement]:
        """By prompt: the agreement with plain decoding, the worst over the rounds."""
        found = {}
        for name, rounds in runs.items():
            ids = self.inputs[name]["input_ids"][0]
            ours = [compare(self.model, ids, plains[name], run.tokens) for run in rounds]
            found[name] = min(ours, key=lambda agreement: (agreement.is_right, agreement.is_identical))
        return found

    def num_calls(self, num_contestants: int, num_rounds: int) -> int:
        """Calls of `generate` by `measure_checked`: references, one of each contestant for warming up, the rounds."""
        return len(self.inputs) + (num_rounds * len(self.inputs) + 1) * num_contestants


def in_turn(
    contestants: Sequence[Contestant],
    bench: Bench,
    num_rounds: int,
    prompts: Sequence[str],
    advance: Callable[[], object] = lambda: None,
) -> Iterator[tuple[str, dict[str, Run]]]:
    """Every prompt by every contestant, once per round in rotating order, after one decoding each that does not count.

    Yields a prompt's name and its runs by contestant. `advance` is called after each decoding.
    """
    for contestant in contestants if prompts else ():
        contestant.start(bench)(prompts[0])
        advance()
    for round_number in range(num_rounds):
        decoders = {contestant.name: contestant.start(bench) for contestant in contestants}
        for number, prompt in enumerate(prompts, start=round_number):
            found = {}
            for name in rotated(list(decoders), number):
                found[name] = decoders[name](prompt)
                advance()
            yield prompt, {name: found[name] for name in decoders}


def rotated(contestants: Sequence[Item], number: int) -> list[Item]:
    """The order of a turn: each begins with the contestant after the one that began the turn before it."""
    first = number % len(contestants)
    return [*contestants[first:], *contestants[:first]]


def measure_checked(
    contestants: Sequence[Contestant], bench: Bench, num_rounds: int, advance: Callable[[], object] = lambda: None
) -> tuple[Runs, Agreements]:
    """All prompts of the bench `in_turn`, and whether greedy outputs are plain's; of sampled ones nothing is known."""
    plains = {}
    for prompt in bench.inputs:
        plains[prompt] = bench.reference(prompt)
        advance()
    runs: Runs = {c.name: {name: [] for name in bench.inputs} for c in contestants}
    for prompt, found in in_turn(contestants, bench, num_rounds, list(bench.inputs), advance):
        for name, run in found.items():
            runs[name][prompt].append(run)
    if bench.sampling.get("do_sample"):
        return runs, {name: {} for name in runs}
    return runs, {name: bench.agreements(plains, mine) for name, mine in runs.items()}


def ms_per_token(rounds: Iterable[Run]) -> float:
    """Milliseconds of the whole call by new token, the median over rounds."""
    return median(run.ms_per_token for run in rounds)


def tokens_per_pass(rounds: Iterable[Run]) -> float:
    """New tokens by pass of the target, the median over rounds."""
    return median(run.tokens_per_pass for run in rounds)


def speeds(runs: Runs, name: str) -> list[float]:
    """By prompt, how many times as fast as plain decoding: the median over rounds of the ratio within a round."""
    return [median(speeds) for speeds in paired_speeds(runs, name)]


def paired_speeds(runs: Runs, name: str) -> list[list[float]]:
    """By prompt and round, how many times as fast as plain decoding."""
    pairs = [(runs[PLAIN][prompt], rounds) for prompt, rounds in runs[name].items()]
    return [ratios(*([run.ms_per_token for run in side] for side in pair)) for pair in pairs]


class Estimate(NamedTuple):
    """A statistic and its 95 % bootstrap interval (percentiles)."""

    value: float
    low: float
    high: float

    def text(self, digits: int = 2, sign: str = "") -> str:
        value, low, high = (f"{x:{sign}.{digits}f}" for x in self)
        return f"{value} ({low} to {high})"


def bootstrap(values: Floats, statistic: Callable[..., np.ndarray] = np.mean) -> Estimate:
    """Resample `values` with replacement along their first axis; `statistic` takes an array and an axis."""
    array = np.asarray(values, dtype=float)
    picks = np.random.default_rng(0).integers(0, len(array), (RESAMPLES, len(array)))
    low, high = np.percentile(statistic(array[picks], axis=1), [2.5, 97.5])
    return Estimate(float(statistic(array, axis=0)), float(low), float(high))


def difference(above: Sequence[float], below: Sequence[float]) -> Estimate:
    """The mean paired difference."""
    return bootstrap(np.subtract(above, below))


def ratios(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """The ratio of every pair."""
    return [a / b for a, b in zip(above, below, strict=True)]


def mean_ratio(ratios: Sequence[float]) -> Estimate:
    """The geometric mean."""
    return Estimate(*map(exp, bootstrap([log(ratio) for ratio in ratios])))


def verdict(agreements: Sequence[Agreement]) -> str:
    """How many outputs are plain's, near-ties and other differences apart."""
    same, ties = sum(a.is_identical for a in agreements), sum(a.is_excused for a in agreements)
    wrong = len(agreements) - same - ties
    found = f"{same} of {len(agreements)}" + f", {ties} differ after a tie" * bool(ties)
    return found + f", {wrong} WRONG" * bool(wrong)


def raw_numbers(runs: Runs, agreements: Agreements) -> dict[str, dict[str, dict[str, Any]]]:
    """Every run's time, length and passes, to compute the tables from, as plain data."""

    def of(rounds: Sequence[Run], agreement: Agreement) -> dict[str, Any]:
        seconds, passes = [run.seconds for run in rounds], [run.num_passes for run in rounds]
        return {"seconds": seconds, "num_tokens": rounds[0].num_tokens, "num_passes": passes, **vars(agreement)}

    return {n: {p: of(rounds, agreements[n][p]) for p, rounds in mine.items()} for n, mine in runs.items()}
