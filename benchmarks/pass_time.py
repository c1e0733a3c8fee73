"""Milliseconds of one target pass over n nodes: plain linear layers against packed weights.

Rounds are paired and interleaved: each round times every variant once for every n, so that another process's work
falls on all of them. Medians, quartiles and all raw times are written to benchmarks/results/pass_time.{json,md}.
"""

from __future__ import annotations

import statistics
import time

import torch
from rich.progress import track
from transformers import DynamicCache, PreTrainedModel

from benchmarks.common import smollm2
from benchmarks.common.settings import (
    RESULTS,
    load_average,
    markdown_table,
    parser,
    settings,
    settings_lines,
    write_json,
)
from treespec.hf.cpu import prepack_linears

NUM_NODES = (1, 2, 4, 8, 16, 32, 64)
VARIANTS = ("plain", "packed")
NUM_CACHED = 200


@torch.inference_mode()
def measure(model: PreTrainedModel, num_rounds: int, generator: torch.Generator) -> dict[str, dict[int, list[float]]]:
    """Times in ms of every round, by variant and number of nodes."""

    def tokens(count: int) -> torch.Tensor:
        return torch.randint(model.config.vocab_size, (1, count), generator=generator)

    cache = DynamicCache()
    model(tokens(NUM_CACHED), past_key_values=cache)
    times = {variant: {n: [] for n in NUM_NODES} for variant in VARIANTS}
    for round_number in track(range(-1, num_rounds), description="rounds"):
        for variant in VARIANTS:
            packed = prepack_linears(model) if variant == "packed" else None
            model(tokens(2), past_key_values=cache)
            cache.crop(-2)
            for n in NUM_NODES:
                ids = tokens(n)
                start = time.perf_counter()
                model(ids, past_key_values=cache)
                if round_number >= 0:
                    times[variant][n].append(1e3 * (time.perf_counter() - start))
                cache.crop(-n)
            if packed:
                packed.remove()
    return times


@torch.inference_mode()
def largest_difference(model: PreTrainedModel, generator: torch.Generator) -> tuple[float, float]:
    """Largest absolute difference of logits between the variants, and the standard deviation of the logits."""
    ids = torch.randint(model.config.vocab_size, (1, 64), generator=generator)
    plain = model(ids).logits
    with prepack_linears(model):
        packed = model(ids).logits
    return float((packed - plain).abs().max()), float(plain.std())


def report(data: dict) -> str:
    def quartiles(times: list[float]) -> str:
        low, middle, high = statistics.quantiles(times, n=4)
        return f"{middle:.1f} ({low:.1f} to {high:.1f})"

    def ratio(n: int) -> str:
        plain, packed = (data["times_ms"][variant][n] for variant in VARIANTS)
        return f"{statistics.median(a / b for a, b in zip(plain, packed, strict=True)):.2f}"

    rows = [[str(n), *(quartiles(data["times_ms"][v][n]) for v in VARIANTS), ratio(n)] for n in NUM_NODES]
    return (
        f"# One pass of {smollm2.NAME} over n nodes, {NUM_CACHED} tokens cached\n\n"
        f"Milliseconds, median (quartiles) of {data['num_rounds']} paired rounds; the ratio is that of the pairs. "
        f"Load average {data['load_average']} before, {data['load_average_after']} after. Largest difference of logits "
        f"{data['logit_difference']:.1e} at a standard deviation of {data['logit_std']:.2f}.\n\n"
        + markdown_table(["nodes", "plain, ms", "packed, ms", "plain / packed"], rows)
        + "\n"
        + settings_lines(data)
    )


def main() -> None:
    options = parser(__doc__ or "")
    options.add_argument("--rounds", type=int, default=21)
    args = options.parse_args()
    torch.set_num_threads(args.threads)
    data = settings(seed=args.seed, num_rounds=args.rounds)
    model, _ = smollm2.load()
    generator = torch.Generator().manual_seed(args.seed)
    difference, std = largest_difference(model, generator)
    times = measure(model, args.rounds, generator)
    data |= {"logit_difference": difference, "logit_std": std, "load_average_after": load_average(), "times_ms": times}
    write_json(RESULTS / "pass_time.json", data)
    (RESULTS / "pass_time.md").write_text(report(data))
    print(report(data))


if __name__ == "__main__":
    main()
