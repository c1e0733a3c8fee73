"""Predicted speeds of models of 8 and 70 billion weights on an H200: plain decoding, chains and trees by texts at once.

No speed here is measured. Tokens per pass are those that `benchmarks.trained_drafters` measured of a head, whatever its
model. A pass takes as long as its arithmetic, or as reading weights and caches, at 0.6 and 0.8 of the device's rates.
"Measured passes" are those of `benchmarks.accelerator`, launched kernel by kernel, where these take longer. A draft
pass takes two of the target's layers; verification and commit take a millisecond of the host.

    python -m benchmarks.trained_drafters head=shipped --chains 1 2 3 4 6 --trees 4 8 16 32 64 --output head.json
    python -m benchmarks.scale head.json --drafter head
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.common.settings import RESULTS, markdown_table, parser, publish, settings

NUM_TEXTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CONTEXT = 512
BYTES_PER_SECOND, MEMORY = 0.8 * 4.8e12, 0.9 * 141e9
DRAFT_LAYERS, HOST_MS = 2, 1.0
Speeds = dict[str, float]
"""Tokens per second by "plain" and the shapes."""


class Target(NamedTuple):
    """Bytes of all weights and of a cached token; operations of the weights, and of attention per cached token."""

    num_layers: int
    weight_bytes: float
    cache_bytes: float
    flops: float
    attention_flops: float
    flops_per_second: float

    def pass_ms(self, num_texts: int, num_tokens: float, measured: Mapping[str, float] | None) -> float:
        """Milliseconds of a pass over so many tokens of all texts.

        Args:
            num_texts: behind `CONTEXT` tokens each.
            num_tokens: of all texts together.
            measured: milliseconds of a pass of one text by number of tokens: kernels' launches last as long for more.
        """
        reading = (self.weight_bytes + num_texts * CONTEXT * self.cache_bytes) / BYTES_PER_SECOND
        arithmetic = num_tokens * (self.flops + CONTEXT * self.attention_flops) / self.flops_per_second
        launched = np.interp(num_tokens, [*map(int, measured)], [*measured.values()]) if measured else 0.0
        return max(1e3 * reading, 1e3 * arithmetic, float(launched))

    def has_room(self, num_texts: int) -> bool:
        return self.weight_bytes + num_texts * CONTEXT * self.cache_bytes < MEMORY


LLAMA_8B = Target(32, 16e9, 131072, 16e9, 4 * 32 * 4096, 0.6 * 989e12)
LLAMA_70B = Target(80, 70.6e9, 327680, 141e9, 4 * 80 * 8192, 0.6 * 1979e12)


def speeds(
    target: Target, num_texts: int, shapes: Mapping[str, Mapping[str, float]], measured: Mapping[str, float] | None
) -> Speeds:
    """What is predicted of plain decoding and of every shape, from its tokens, passes and levels."""
    found = {"plain": 1e3 * num_texts / target.pass_ms(num_texts, num_texts, measured)}
    for shape, counts in shapes.items():
        kind, size = shape.split(" of ")
        num_nodes, levels = int(size) + (kind == "chain"), counts["levels"] / counts["passes"]
        width = (num_nodes - 1) / max(levels, 1.0)
        draft_pass_ms = target.pass_ms(num_texts, num_texts * width, measured) * DRAFT_LAYERS / target.num_layers
        step_ms = levels * draft_pass_ms + target.pass_ms(num_texts, num_texts * num_nodes, measured) + HOST_MS
        found[shape] = 1e3 * num_texts * counts["tokens"] / counts["passes"] / step_ms
    return found


def predict(shapes: Mapping[str, Any], measured: Mapping[str, float]) -> dict[str, dict[str, Speeds]]:
    """By case and number of texts at once."""
    cases = {
        "8B, bfloat16, measured passes": (LLAMA_8B, measured),
        "8B, bfloat16": (LLAMA_8B, None),
        "70B, float8": (LLAMA_70B, None),
    }
    return {
        case: {str(n): speeds(target, n, shapes, passes) for n in NUM_TEXTS if target.has_room(n)}
        for case, (target, passes) in cases.items()
    }


def best(found: Speeds, kind: str) -> str:
    return max((name for name in found if name.startswith(kind)), key=lambda name: found[name])


def crossings(by_texts: dict[str, Speeds]) -> str:
    """From how many texts on the best chain is as fast as the best tree, and plain decoding as both."""
    said = []
    for slower, faster, words in (
        ("tree", "chain", "The best chain passes the best tree"),
        ("chain", "plain", "Plain decoding passes the best chain"),
        ("tree", "plain", "Plain decoding passes the best tree"),
    ):
        at = next(
            (n for n, found in by_texts.items() if found[best(found, faster)] >= found[best(found, slower)]), None
        )
        said.append(f"{words} from {at} texts at once." if at else f"{words} at none of these numbers.")
    return " ".join(said)


def report(data: dict[str, Any]) -> str:
    """Markdown: a table per temperature and case."""
    about = " ".join((__doc__ or "").split("\n\n")[1].split())
    lines = ["# Predicted speeds on an H200", "", f"{about} {CONTEXT} tokens before each.", ""]
    lines += [f"{data['drafter']}: {data['acceptance']}. Passes: {data['device_name']}.", ""]
    for temperature, cases in data["found"].items():
        for case, by_texts in cases.items():
            rows = [
                [num, f"{found['plain']:,.0f}"]
                + [
                    f"{shape}: {found[shape] / found['plain']:.2f}"
                    for shape in (best(found, "chain"), best(found, "tree"))
                ]
                for num, found in by_texts.items()
            ]
            header = ["texts at once", "plain, tokens per second", "best chain, times plain", "best tree"]
            lines += [f"## {case}, {temperature}", "", markdown_table(header, rows), crossings(by_texts), ""]
    return "\n".join(lines)


def main() -> None:
    options = parser(__doc__ or "", threads=1)
    options.add_argument("acceptance", type=Path, help="a result of benchmarks.trained_drafters")
    options.add_argument("--drafter", default="head", help="its name there (default: %(default)s)")
    options.add_argument("--passes", type=Path, default=RESULTS / "accelerator.json", help="of benchmarks.accelerator")
    options.add_argument("--output", type=Path, default=RESULTS / "scale" / "scale.json")
    args = options.parse_args()
    measured, passes = (json.loads(path.read_text()) for path in (args.acceptance, args.passes))
    if args.drafter not in measured["drafters"]:
        options.error(f"{args.acceptance} has no drafter {args.drafter!r}, but {', '.join(measured['drafters'])}")
    data = settings(drafter=args.drafter, acceptance=args.acceptance.name, device_name=passes["device_name"])
    times = passes["passes"][f"{CONTEXT} tokens before"]
    data["found"] = {t: predict(shapes, times) for t, shapes in measured["drafters"][args.drafter].items()}
    publish(args.output, data, report(data))


if __name__ == "__main__":
    main()
