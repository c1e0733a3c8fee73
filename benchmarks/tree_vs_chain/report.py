"""Tables of what `benchmarks.tree_vs_chain` measured."""

from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.common.estimates import cross_fitted
from benchmarks.common.settings import markdown_table, settings_lines
from benchmarks.tree_vs_chain.policies import BUDGETS, CHAIN, POLICIES
from treespec.lab.measure.paired import difference

Lengths = dict[str, dict[int, list[float]]]
"""Acceptance lengths by policy and drafted tokens, one number per prompt."""


def lengths_of(cells: list[dict[str, dict[str, list[int]]]]) -> Lengths:
    """From counts per prompt: [tokens, steps] by policy and drafted tokens."""
    return {
        name: {n: [prompt[name][str(n)][0] / prompt[name][str(n)][1] for prompt in cells] for n in BUDGETS}
        for name in cells[0]
    }


def best_tree(lengths: Lengths, num_drafted: int) -> tuple[list[float], list[str]]:
    """The best policy, the chain among them, chosen on other prompts."""
    return cross_fitted({name: cells[num_drafted] for name, cells in lengths.items()})


def write(found: dict[str, Any], folder: Path) -> str:
    """Write the report to the folder and return it."""
    text = "\n".join(["# Trees against chains", "", *acceptance_lines(found)]) + "\n"
    (folder / "tree_vs_chain.md").write_text(text)
    return text


def acceptance_lines(found: dict[str, Any]) -> list[str]:
    lines = ["## Acceptance length", "", _about_acceptance(found), ""]
    for key, drafters in found["selected"].items():
        lines += [f"### Best tree against the chain, {key}", "", _ABOUT_BEST, ""]
        lines += [best_table({name: lengths_of(cells) for name, cells in drafters.items()})]
    for key, drafters in found["selected"].items():
        lines += [f"### Every policy, {key}", "", policy_table(drafters)]
    return [*lines, run_text(found["run"])]


def best_table(drafters: dict[str, Lengths]) -> str:
    """Rows: drafter; columns: sizes; the chain, the best tree, and the paired gain."""
    rows = []
    for name, lengths in drafters.items():
        count = f"{name} ({len(lengths[CHAIN][1])} prompts)"
        rows.append([count, CHAIN, *(f"{fmean(lengths[CHAIN][n]):.2f}" for n in BUDGETS)])
        best = {n: best_tree(lengths, n) for n in BUDGETS}
        rows.append(["", "best tree", *(f"{fmean(best[n][0]):.2f}" for n in BUDGETS)])
        rows.append(["", "gain", *(difference(best[n][0], lengths[CHAIN][n]).text(sign="+") for n in BUDGETS)])
        rows.append(["", "chosen", *(" / ".join(dict.fromkeys(best[n][1])) if n > 1 else "" for n in BUDGETS)])
    return markdown_table(["drafter", "", *map(str, BUDGETS)], rows)


def policy_table(drafters: dict[str, list[Any]]) -> str:
    rows = []
    for name, cells in drafters.items():
        for policy, by_size in lengths_of(cells).items():
            rows.append([name if policy == CHAIN else "", policy, *(f"{fmean(by_size[n]):.2f}" for n in BUDGETS)])
    return markdown_table(["drafter", "policy", *map(str, BUDGETS)], rows)


def run_text(run: dict[str, Any]) -> str:
    """A call's settings, time and load."""
    load = f"load {run['load_average']} before, {run['load_average_after']} after"
    return f"{run['seconds']} s in this call, {load}, seed {run['seed']}. {settings_lines(run)}"


def _about_acceptance(found: dict[str, Any]) -> str:
    run, names = found["run"], found["prompts"]
    return (
        f"Emitted tokens per target pass, means over prompts ({', '.join(names)}), {run['new_tokens']} "
        f"tokens each. {_ABOUT_REPLAY} Policies: {', '.join(POLICIES)}; Sequoia's tables come from other prompts. "
        "Intervals: 95 %, bootstrap over prompts."
    )


_ABOUT_REPLAY = (
    "Sizes count the nodes below the root. The engine's loop is replayed along texts of the target (greedy at T=0, "
    "one sample per prompt at T=1): with selected children and the target walk this accepts what it would have "
    "accepted when the text was written. Drafters are fresh for every prompt: cold ones start empty, warm ones from "
    "what ships with treespec, warm merges also with weights of their parts, learned along the texts of Sequoia's "
    "tables. The draft model is SmolLM2 without three of its thirty layers, not trained for it."
)
_ABOUT_BEST = (
    "The best tree is chosen among all policies, the chain included, by the other prompts (at most four folds), so "
    "its gain is free of hindsight; the gain is paired."
)
