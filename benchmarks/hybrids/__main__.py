"""Models with states: rounding of tree passes by depth.

    python -m benchmarks.hybrids     # ten minutes

Results: benchmarks/results/hybrids.{json,md}.
"""

from functools import partial
from typing import Any

import torch

from benchmarks.common.settings import RESULTS, markdown_table, parser, publish, settings
from benchmarks.hybrids import error
from benchmarks.hybrids.models import KINDS, by_kind


def tables(found: dict[str, Any]) -> list[str]:
    """By dtype and by what passes are compared with."""
    header = ["recurrence", "pass", *(f"depths {first} to {last}" for first, last in error.DEPTHS)]
    return [
        f"## Differences from {reference}, {dtype}, root mean square in standard deviations of the logits\n\n"
        + markdown_table(header, [row for kind in found for row in rows(kind, found[kind][dtype][reference])])
        for dtype in error.DTYPES
        for reference in error.COMPARED
    ]


def rows(kind: str, by_way: dict[str, list[float]]) -> list[list[str]]:
    """The differences of a kind's passes, and their ratios to those of the model's own pass over the text."""
    own = torch.tensor(by_way["whole text"])
    shown = [[kind, way, *(f"{value:.1e}" for value in values)] for way, values in by_way.items()]
    for way in ("chain", "tree"):
        ratios = (torch.tensor(by_way[way]) / own).tolist()
        texts = [f"{ratio:.2f}".replace("nan", "no difference") for ratio in ratios]
        shown.append([kind, f"{way} / whole text", *texts])
    return shown


def main() -> None:
    options = parser(str(__doc__).splitlines()[0])
    options.add_argument("--size", type=int, default=256, help="hidden size (default: %(default)s)")
    options.add_argument("--layers", type=int, default=4)
    options.add_argument("--texts", type=int, default=64)
    args = options.parse_args()
    torch.set_num_threads(args.threads)
    data = settings(hidden_size=args.size, layers=args.layers, texts=args.texts, seed=args.seed)
    errors = partial(error.errors, num_texts=args.texts, seed=args.seed)
    data["results"] = by_kind(errors, KINDS, args.size, args.layers, args.seed)
    publish(RESULTS / "hybrids.json", data, report(data))


def report(data: dict[str, Any]) -> str:
    sizes = f"{data['hidden_size']} hidden, {data['layers']} layers, {data['texts']} texts"
    return "\n".join([*tables(data["results"]), f"{sizes}, load {data['load_average']}.\n"])


if __name__ == "__main__":
    main()
