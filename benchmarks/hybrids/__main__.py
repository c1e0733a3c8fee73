"""Models with states: rounding of tree passes by depth, times of passes, whole texts by trees, chains and plain.

    python -m benchmarks.hybrids error     # ten minutes
    python -m benchmarks.hybrids time      # three minutes
    python -m benchmarks.hybrids chunks    # a minute
    python -m benchmarks.hybrids whole     # three minutes

`time`, `chunks` and `whole` need a quiet machine. Each writes its part of benchmarks/results/hybrids.{json,md}.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from benchmarks.common.settings import RESULTS, markdown_table, parser, settings, settings_lines, write_json
from benchmarks.hybrids import error, time, whole

Table = tuple[str, list[str], list[list[str]]]


def error_tables(found: dict[str, Any]) -> list[Table]:
    depths = [f"depths {first} to {last}" for first, last in error.DEPTHS]
    tables: list[Table] = []
    for dtype in error.DTYPES:
        for reference, ways in error.COMPARED.items():
            title = f"Differences from {reference}, {dtype}, root mean square in standard deviations of the logits"
            rows = []
            for kind, dtypes in found.items():
                by_way = dtypes[dtype][reference]
                rows += [[kind, way, *(f"{value:.1e}" for value in by_way[way])] for way in ways]
                own = torch.tensor(by_way["whole text"])
                for way in ("chain", "tree"):
                    ratios = (torch.tensor(by_way[way]) / own).tolist()
                    texts = [f"{ratio:.2f}".replace("nan", "no difference") for ratio in ratios]
                    rows.append([kind, f"{way} / whole text", *texts])
            tables.append((title, ["recurrence", "pass", *depths], rows))
    return tables


def time_tables(found: dict[str, Any], of_n: str = "") -> list[Table]:
    sizes = [str(size) for size in time.NUM_NODES]
    return [
        (title, ["recurrence", *sizes], [[kind, *(f"{by[n][key]:.2f}" for n in sizes)] for kind, by in found.items()])
        for title, key in (
            (f"Tree pass over n nodes divided by the model's own pass over n tokens{of_n}, medians of pairs", "ratio"),
            (f"Tree pass, ms{of_n and ' (in turn with those)'}", "tree_ms"),
            (f"The model's own pass{of_n}, ms", "own_ms"),
        )
    ]


def whole_tables(found: dict[str, Any]) -> list[Table]:
    header = ["", "ms per token of each text", "times as fast as plain", "tokens per pass", "texts as plain"]
    tables: list[Table] = []
    for title in ("single texts", "batches of four"):
        rows = []
        for name, run in found[title].items():
            same = f"{run['same_as_plain']} of {run['texts']}"
            rows.append([name, *(f"{run[key]:.2f}" for key in ("ms_per_token", "speed", "tokens_per_pass")), same])
        tables.append((f"{title.capitalize()}, {found['weights'] / 1e6:.0f} million weights", header, rows))
    return tables


TABLES: dict[str, Callable[[dict[str, Any]], list[Table]]] = {
    "error": error_tables,
    "time": time_tables,
    "chunks": partial(time_tables, of_n=" in chunks of n"),
    "whole": whole_tables,
}

MEASURES: dict[str, Callable[[int, int, int, int], dict[str, Any]]] = {
    "error": error.measure,
    "time": time.measure,
    "chunks": time.measure_chunks,
    "whole": whole.measure,
}
USUAL = {"error": (256, 4, 64), "time": (1024, 4, 8), "chunks": (1024, 4, 8), "whole": (768, 12, 8)}
"""Hidden size, layers, and rounds or texts."""


def main() -> None:
    options = parser(str(__doc__).splitlines()[0])
    options.add_argument("what", choices=TABLES)
    for number, name in enumerate(("size", "layers", "rounds")):
        usual = ", ".join(f"{sizes[number]} for {what}" for what, sizes in USUAL.items())
        options.add_argument(f"--{name}", type=int, help=f"default: {usual}")
    args = options.parse_args()
    torch.set_num_threads(args.threads)
    size, num_layers, rounds = (
        given or usual for given, usual in zip((args.size, args.layers, args.rounds), USUAL[args.what], strict=True)
    )
    circumstances = settings(hidden_size=size, layers=num_layers, rounds=rounds, seed=args.seed)
    found = MEASURES[args.what](size, num_layers, rounds, args.seed)
    file = RESULTS / "hybrids.json"
    kept = json.loads(file.read_text()) if file.is_file() else {}
    kept[args.what] = circumstances | {"results": found}
    write_json(file, {what: kept[what] for what in TABLES if what in kept})
    file.with_suffix(".md").write_text("\n".join(report(what, kept[what]) for what in TABLES if what in kept))


def report(what: str, run: dict[str, Any]) -> str:
    """The tables of one question, and its circumstances."""
    parts = [f"## {title}\n\n{markdown_table(header, rows)}" for title, header, rows in TABLES[what](run["results"])]
    sizes = f"{run['hidden_size']} hidden, {run['layers']} layers, {run['rounds']} rounds or texts"
    return "\n".join([*parts, settings_lines(run) + f"{sizes}, load {run['load_average']}.\n"])


if __name__ == "__main__":
    main()
