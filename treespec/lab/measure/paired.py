"""Ways of decoding compared on the same prompts: interleaved rounds, paired ratios, outputs checked against plain."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import log
from statistics import median
from time import perf_counter
from typing import Any

from torch import Tensor

from treespec.lab.selftest.agreement import Agreement, Plain, compare, plain_greedy

PLAIN = "plain generate"


@dataclass(frozen=True)
class Run:
    """One decoded prompt: the new tokens, the time of the whole call and the passes of the target."""

    tokens: list[int]
    seconds: float
    num_passes: int

    @property
    def ms_per_token(self) -> float:
        return 1e3 * self.seconds / len(self.tokens)

    @property
    def tokens_per_pass(self) -> float:
        return len(self.tokens) / self.num_passes


Runs = dict[str, dict[str, list[Run]]]
"""By contestant and prompt, one run per round."""

Agreements = dict[str, dict[str, Agreement]]
"""By contestant and prompt, the worst agreement with plain greedy decoding over the rounds."""


@dataclass(frozen=True)
class Contestant:
    """A way of decoding: `options()` makes the arguments of `generate` that set it apart, fresh for every round."""

    name: str
    options: Callable[[], dict[str, Any]]


@dataclass
class Bench:
    """The model, the prompts (arguments of `generate` by name) and what every contestant gets alike.

    `sampling`: arguments of `generate`; `reference` and `agreements` are for greedy decoding.
    """

    model: Any
    inputs: Mapping[str, Mapping[str, Tensor]]
    num_new: int
    sampling: Mapping[str, Any] = field(default_factory=lambda: {"do_sample": False})
    num_passes: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.model.register_forward_pre_hook(self._count)

    def _count(self, *_: Any) -> None:
        self.num_passes += 1

    def decode(self, prompt: str, options: Mapping[str, Any]) -> Run:
        """Decode and time it; passes of the target are counted, the prompt's included."""
        inputs = self.inputs[prompt]
        before = self.num_passes
        start = perf_counter()
        out = self.model.generate(**inputs, max_new_tokens=self.num_new, **self.sampling, **options)
        tokens = out[0, inputs["input_ids"].shape[1] :].tolist()  # On accelerators this waits for the output.
        return Run(tokens, perf_counter() - start, self.num_passes - before)

    def reference(self, prompt: str) -> Plain:
        """The plain continuation with its logit gaps; untimed, so it warms the model up as well."""
        return plain_greedy(self.model, dict(self.inputs[prompt]), self.num_new)

    def agreements(self, plains: Mapping[str, Plain], runs: Mapping[str, Sequence[Run]]) -> dict[str, Agreement]:
        """By prompt: the agreement with plain decoding, the worst over the rounds."""
        agreements = {}
        for name, rounds in runs.items():
            ids = self.inputs[name]["input_ids"][0]
            found = [compare(self.model, ids, plains[name], run.tokens) for run in rounds]
            agreements[name] = min(found, key=lambda agreement: (agreement.is_right, agreement.is_identical))
        return agreements


def measure(
    contestants: Sequence[Contestant], bench: Bench, num_rounds: int, advance: Callable[[], object] = lambda: None
) -> Runs:
    """Every prompt by every contestant, once per round in rotating order, after one decoding each that does not count.

    `advance` is called after each of `num_decodings` decodings.
    """
    runs: Runs = {c.name: {name: [] for name in bench.inputs} for c in contestants}
    for contestant in contestants:
        bench.decode(next(iter(bench.inputs)), contestant.options())
        advance()
    for round_number in range(num_rounds):
        options = [contestant.options() for contestant in contestants]
        for number, name in enumerate(bench.inputs):
            for turn in range(len(contestants)):
                index = (turn + number + round_number) % len(contestants)
                runs[contestants[index].name][name].append(bench.decode(name, options[index]))
                advance()
    return runs


def num_decodings(num_contestants: int, num_prompts: int, num_rounds: int) -> int:
    """Calls of `generate` in all, one of each contestant for warming up included."""
    return (num_rounds * num_prompts + 1) * num_contestants


def ms_per_token(rounds: Iterable[Run]) -> float:
    """Milliseconds of the whole call by new token, the median over rounds."""
    return median(run.ms_per_token for run in rounds)


def tokens_per_pass(rounds: Iterable[Run]) -> float:
    """New tokens by pass of the target, the median over rounds."""
    return median(run.tokens_per_pass for run in rounds)


def speeds(runs: Runs, name: str) -> list[float]:
    """By prompt, how many times as fast as plain decoding: the median over rounds of the ratio within a round."""
    pairs = [zip(runs[PLAIN][prompt], rounds, strict=True) for prompt, rounds in runs[name].items()]
    return [median(plain.ms_per_token / mine.ms_per_token for plain, mine in rounds) for rounds in pairs]


def log_speeds(runs: Runs, name: str) -> list[float]:
    """By prompt and round, the logarithm of how many times as fast as plain decoding."""
    pairs = [zip(runs[PLAIN][prompt], rounds, strict=True) for prompt, rounds in runs[name].items()]
    return [log(plain.ms_per_token / mine.ms_per_token) for rounds in pairs for plain, mine in rounds]


def verdict(agreements: Sequence[Agreement]) -> str:
    """How many outputs are plain's, near-ties and other differences apart."""
    same, ties = sum(a.is_identical for a in agreements), sum(a.is_excused for a in agreements)
    wrong = len(agreements) - same - ties
    parts = [
        f"{same} of {len(agreements)}",
        f"{ties} differ after a tie" if ties else "",
        f"{wrong} WRONG" if wrong else "",
    ]
    return ", ".join(part for part in parts if part)


def raw_numbers(runs: Runs, agreements: Agreements) -> dict[str, dict[str, dict[str, Any]]]:
    """Every run's time, length and passes, to compute the tables from, as plain data."""
    return {
        name: {
            prompt: {
                "seconds": [run.seconds for run in rounds],
                "num_tokens": len(rounds[0].tokens),
                "num_passes": [run.num_passes for run in rounds],
                **vars(agreements[name][prompt]),
            }
            for prompt, rounds in mine.items()
        }
        for name, mine in runs.items()
    }
