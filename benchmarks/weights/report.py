"""The table of `benchmarks.weights`."""

from __future__ import annotations

from statistics import fmean, median
from typing import Any

from benchmarks.common.settings import markdown_table, settings_lines
from benchmarks.weights.schemes import SCHEMES
from treespec.hf.loading import smollm2

HEADER = [
    "weights",
    "decodes by",
    "identical to plain",
    "own ties",
    "other",
    "largest gap / noise",
    "accepted per pass",
    "plain text as float32's",
    "plain ms/token",
    "treespec ms/token",
    "speed",
]


def report(data: dict[str, Any]) -> str:
    """Markdown: one row per scheme, then what is refused, warned of and different, and how it was measured."""
    known = {name: data["schemes"][name] for name in SCHEMES if data["schemes"].get(name)}
    rows = [row(name, found, known.get("float32", {})) for name, found in known.items()]
    lines = [f"- {line}" for name, found in known.items() for line in remarks(name, found)]
    skipped = [name for name in SCHEMES if name not in known]
    versions = {}
    for found in known.values():
        for step in found.values():
            versions |= step["versions"]
    parts = [
        f"# {smollm2.NAME} with quantised and half-precision weights\n",
        "Every scheme loads the same dequantised Q4_1 weights. Identical: greedy texts of treespec (a tree of 8 nodes, "
        "token recycling and suffix lookup) equal to plain `generate` of the same model. Own ties: texts that "
        "differ first where plain's two best logits are closer than twice the model's own noise, the difference of its "
        "logits between reading the same text in one pass, token by token, and with the prompt's last tokens apart, "
        "all without treespec. Plain text as float32's: how many of the scheme's plain texts are float32's own, and "
        "the median gap between float32's two best logits where the others leave it. "
        'Speed: `tree="auto"`, the prompt left out, mean over prompts.\n',
        markdown_table(HEADER, rows),
        *lines,
    ]
    if skipped:
        parts.append(f"\nNot measured: {', '.join(skipped)}.")
    for step, about in data["settings"].items():
        text = f"{about['prompts']} prompts, {about['new_tokens']} new tokens, load average of the last run "
        parts.append(f"\n{step.capitalize()}: {text}{about['load_average']}. {settings_lines(about)}")
    parts.append("Packages: " + ", ".join(f"{name} {version}" for name, version in sorted(versions.items())) + ".")
    return "\n".join(parts) + "\n"


def row(name: str, found: dict[str, Any], exact: dict[str, Any]) -> list[str]:
    same, time = found.get("identity", {}), found.get("time", {})
    either = same or time
    if "fails_plainly" in either or "refused" in either:
        way = "refused" if "refused" in either else "plain `generate` fails too"
        return [name, way, *["–"] * (len(HEADER) - 2)]
    cells = [name, {"tree": "trees", "chain": "chains", "plain": "single tokens"}[either["capability"]]]
    cells += [*identity_cells(same), rounding_cell(same, exact.get("identity", {}))] if same else ["–"] * 6
    return cells + (time_cells(time) if time else ["–"] * 3)


def identity_cells(same: dict[str, Any]) -> list[str]:
    differ = [row for row in same["rows"] if row["position"] is not None]
    ratios = [row["gap"] / row["noise"] for row in differ if row["noise"]]
    return [
        f"{same['num_identical']} of {len(same['rows'])}",
        str(same["num_ties"]),
        str(len(differ) - same["num_ties"]),
        f"{max(ratios):.2g}" if ratios else "–",
        f"{same['mean_acceptance_length']:.2f}",
    ]


def rounding_cell(same: dict[str, Any], exact: dict[str, Any]) -> str:
    """How many of the scheme's plain texts are float32's, and float32's gap of logits where the others leave it."""
    rows = zip(same["rows"], exact.get("rows", []), strict=False)
    pairs = [(ours, theirs) for ours, theirs in rows if "plain" in ours and "plain" in theirs]
    if not pairs or same is exact:
        return "–"
    gaps = []
    for ours, theirs in pairs:
        steps = zip(ours["plain"], theirs["plain"], theirs["gaps"], strict=False)
        gaps += [gap for token, other, gap in steps if token != other][:1]
    about = f", gap {median(gaps):.2g}" if gaps else ""
    return f"{len(pairs) - len(gaps)} of {len(pairs)}{about}"


def time_cells(time: dict[str, Any]) -> list[str]:
    plain, ours = (fmean(time["ms_per_token"][way]) for way in ("plain", "treespec"))
    return [f"{plain:.1f}", f"{ours:.1f}", f"{plain / ours:.2f}"]


def remarks(name: str, found: dict[str, Any]) -> list[str]:
    """Errors and warnings of a scheme, each once."""
    texts = []
    for step in found.values():
        texts += [step[key] for key in ("fails_plainly", "refused") if key in step] + step.get("warnings", [])
    return [f"{name}: {text}" for text in dict.fromkeys(texts)]
