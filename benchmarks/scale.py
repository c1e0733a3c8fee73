"""Predicted speeds of models of 8 and 70 billion weights on an H200: plain decoding, chains and trees by texts at once.

No speed here is measured. Tokens per pass, without a prompt's first, are those that `benchmarks.trained_drafters`
measured of a drafter alone, no lookups, with SmolLM2-135M-Instruct; a larger model's own are unknown. A pass takes as
long as its arithmetic, or as reading weights and caches, at 0.6 and 0.8 of the device's rates. "Measured passes" are
those of `benchmarks.accelerator`, launched kernel by kernel, where these take longer. A draft pass takes two of the
target's layers; verification and commit take a millisecond of the host. "Shared trees" are those of a server's greedy
texts: all are drafted, and of each the nodes above one value, the best of `LEAST_VALUES`, are verified in one pass.

    python -m benchmarks.trained_drafters head=shipped --chains 1 2 3 4 6 --trees 4 8 16 32 64 \\
        --spec-bench question.jsonl --output head.json
    python -m benchmarks.scale head.json
"""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from statistics import NormalDist, fmean
from typing import Any, NamedTuple

import numpy as np

from benchmarks.common.settings import RESULTS, markdown_table, parser, publish, settings, settings_lines
from treespec.lab.smollm2 import NAME

NUM_TEXTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CONTEXT = 512
BYTES_PER_SECOND, MEMORY = 0.8 * 4.8e12, 0.9 * 141e9
DRAFT_LAYERS, HOST_MS = 2, 1.0
SPREAD = np.array([NormalDist().inv_cdf(0.05 + 0.1 * part) for part in range(10)])
WORDS = {"plain": "plain decoding", "chain": "the best chain", "tree": "the best tree", "shared": "shared trees"}
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


def speeds(target: Target, num_texts: int, shapes: Mapping[str, Any], measured: Mapping[str, float] | None) -> Speeds:
    """Predicted tokens per second: plain, of every shape from its tokens, passes and levels, and of sharing.

    The fastest of the trees of which nodes above a value stay is named with its mean nodes per text, root included.
    """
    found = {"plain": 1e3 * num_texts / target.pass_ms(num_texts, num_texts, measured)}
    shared = list[tuple[float, str]]()
    for shape, counts in shapes.items():
        kind, size = shape.split(" of ")
        num_nodes, levels = int(size) + (kind == "chain"), counts["levels"] / counts["passes"]
        num_drafted = num_texts * (num_nodes - 1) / max(levels, 1.0)
        draft_pass_ms = target.pass_ms(num_texts, num_drafted, measured) * DRAFT_LAYERS / target.num_layers
        draft_ms = levels * draft_pass_ms + HOST_MS
        step_ms = draft_ms + target.pass_ms(num_texts, num_texts * num_nodes, measured)
        if shape != "tree of 2":  # A chain of 1; only sharing makes it a tree.
            found[shape] = 1e3 * num_texts * counts["tokens"] / counts["passes"] / step_ms
        for part in counts.get("sharing", {}).values():
            # The sum over texts differs from step to step.
            sums = num_texts * (1 + part["nodes"]) + num_texts**0.5 * part["deviation"] * SPREAD
            step_ms = draft_ms + fmean(target.pass_ms(num_texts, max(n, num_texts), measured) for n in sums)
            name = f"shared {shape}, {1 + part['nodes']:.1f} nodes"
            shared.append((1e3 * num_texts * (1 + part["accepted"]) / step_ms, name))
    return found | {name: speed for speed, name in sorted(shared)[-1:]}


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


def crossings(by_texts: dict[str, Speeds], kinds: Collection[str]) -> str:
    """From how many texts on the best chain is as fast as the best tree or shared trees, and plain decoding as all."""
    pairs = [("chain", "tree"), ("chain", "shared"), ("plain", "chain"), ("plain", "tree"), ("plain", "shared")]
    said = []
    for faster, slower in pairs:
        if slower in kinds:
            rates = {n: [found[best(found, kind)] for kind in (faster, slower)] for n, found in by_texts.items()}
            at = next((f"from {n} texts at once" for n, (one, other) in rates.items() if one >= other), None)
            said.append(f"{WORDS[faster].capitalize()} passes {WORDS[slower]} {at or 'at none of these numbers'}.")
    return " ".join(said)


def source(measured: dict[str, Any], drafter: str) -> str:
    """The target, drafter, prompts and settings of counts; `NAME` was the only target before files named theirs."""
    given = next((part for part in measured["command"].split() if part.startswith(f"{drafter}=")), drafter)
    about = f"{measured.get('target', NAME)} with {given} alone, {len(measured['prompts'])} prompts"
    return f"{about} of {measured['new_tokens']} tokens at most. {settings_lines(measured)}"


def report(data: dict[str, Any]) -> str:
    """Markdown: a table per temperature and case."""
    about = " ".join((__doc__ or "").split("\n\n")[1].split())
    lines = ["# Predicted speeds on an H200", "", f"{about} {CONTEXT} tokens before each.", ""]
    lines += ["".join(f"- `{name}`: {said}" for name, said in data["inputs"].items())]
    for temperature, cases in data["found"].items():
        for case, by_texts in cases.items():
            kinds = [kind for kind in WORDS if any(name.startswith(kind) for name in by_texts["1"])][1:]
            rows = [
                [num, f"{found['plain']:,.0f}"]
                + [f"{name.removeprefix('shared ')}: {found[name] / found['plain']:.2f}" for name in names]
                for num, found in by_texts.items()
                for names in [[best(found, kind) for kind in kinds]]
            ]
            header = ["texts at once", "plain, tokens per second", *(f"{WORDS[kind]}, times plain" for kind in kinds)]
            lines += [f"## {case}, {temperature}", "", markdown_table(header, rows), crossings(by_texts, kinds), ""]
    return "\n".join(lines)


def main() -> None:
    options = parser(__doc__ or "", threads=1)
    options.add_argument("acceptance", type=Path, nargs="+", help="of benchmarks.trained_drafters; the last counts")
    options.add_argument("--drafter", default="head", help="its name there (default: %(default)s)")
    options.add_argument("--passes", type=Path, default=RESULTS / "accelerator.json", help="of benchmarks.accelerator")
    options.add_argument("--output", type=Path, default=RESULTS / "scale" / "scale.json")
    args = options.parse_args()
    shapes, inputs = dict[str, dict[str, Any]](), dict[str, str]()
    for file in args.acceptance:
        measured = json.loads(file.read_text())
        if args.drafter not in measured["drafters"]:
            options.error(f"{file} has no drafter {args.drafter!r}, but {', '.join(measured['drafters'])}")
        inputs[file.name] = source(measured, args.drafter)
        for temperature, found in measured["drafters"][args.drafter].items():
            for shape, counts in found.items():  # The prompts' passes gave a token each.
                counts["tokens"] -= len(measured["prompts"])
                shapes.setdefault(temperature, {})[shape] = counts
    passes = json.loads(args.passes.read_text())
    inputs[args.passes.name] = f"passes, {passes['device_name']}. {settings_lines(passes)}"
    times = passes["passes"][f"{CONTEXT} tokens before"]
    data = settings(inputs=inputs, found={name: predict(found, times) for name, found in shapes.items()})
    publish(args.output, data, report(data))


if __name__ == "__main__":
    main()
