"""What was claimed of trees, answered by the numbers of `benchmarks.tree_vs_chain acceptance`."""

from __future__ import annotations

from typing import Any

from benchmarks.common.drafters import PARTS
from benchmarks.common.estimates import cross_fitted
from benchmarks.tree_vs_chain.policies import BINARY, BUDGETS, CHAIN, SEQUOIA
from treespec.lab.measure.estimates import Estimate, difference

Lengths = dict[str, dict[int, list[float]]]
"""Acceptance lengths by policy and drafted tokens, one number per prompt."""

SEQUOIA_BUDGETS = (8, 16, 32, 64)


def lengths_of(cells: list[dict[str, dict[str, list[int]]]]) -> Lengths:
    """From counts per prompt: [tokens, steps] by policy and drafted tokens."""
    return {
        name: {n: [prompt[name][str(n)][0] / prompt[name][str(n)][1] for prompt in cells] for n in BUDGETS}
        for name in cells[0]
    }


def best_tree(lengths: Lengths, num_drafted: int) -> tuple[list[float], list[str]]:
    """The best policy, the chain among them, chosen on other prompts."""
    return cross_fitted({name: cells[num_drafted] for name, cells in lengths.items()})


def claim_lines(found: dict[str, Any]) -> list[str]:
    """One sentence per claim, made of the numbers."""
    return [tree_claim(found), sequoia_claim(found), *merge_claim(found)]


def by_chance(count: int) -> str:
    """How many of so many intervals lie below zero where nothing is worse."""
    return f"about {0.025 * count:.0f} would be by chance"


def tree_claim(found: dict[str, Any]) -> str:
    """Where the best tree is below the chain."""
    below, count = [], 0
    for key, drafters in found["selected"].items():
        for name, cells in drafters.items():
            lengths = lengths_of(cells)
            for n in BUDGETS[1:]:
                count += 1
                gain = difference(best_tree(lengths, n)[0], lengths[CHAIN][n])
                if gain.high < 0:
                    below.append(f"{name}, {key}, {n} nodes: {gain.text(sign='+')}")
    said = f"in {len(below)} ({'; '.join(below)})" if below else "in none"
    return (
        "- Best tree (the chain among its candidates, chosen on other prompts) below the chain of as many nodes beyond "
        f"paired noise: {said} of {count} cells of drafter, temperature and size; {by_chance(count)}."
    )


def sequoia_claim(found: dict[str, Any]) -> str:
    """Sequoia's tree against the complete binary one."""
    gains = sequoia_gains(found)
    wins = sum(gain.value > 0 for gain in gains.values())
    sure = sum(gain.low > 0 for gain in gains.values())
    lost = [f"{name} {gain.text(sign='+')}" for name, gain in gains.items() if gain.high < 0]
    sizes = ", ".join(map(str, SEQUOIA_BUDGETS))
    below = f"in {'; '.join(lost)}" if lost else "in none"
    return (
        "- Sequoia's tree, from acceptance recorded on other prompts, against the complete binary tree of the same "
        f"size ({sizes} nodes): higher in {wins} of {len(gains)} cells, beyond noise in {sure}, below beyond noise "
        f"{below}; {by_chance(len(gains))}."
    )


def merge_claim(found: dict[str, Any]) -> list[str]:
    """Where a merged drafter is worse than one of its parts, each with its best policy of as many nodes."""
    count, below, above = 0, [], 0
    for key, drafters in found["selected"].items():
        for name, parts in PARTS.items():
            if not {name, *parts} <= set(drafters):
                continue
            merged = lengths_of(drafters[name])
            for part in parts:
                alone = lengths_of(drafters[part])
                for n in BUDGETS:
                    gain = difference(best_tree(merged, n)[0], best_tree(alone, n)[0])
                    count, above = count + 1, above + (gain.low > 0)
                    if gain.high < 0:
                        below.append(f"{name} below {part}, {key}, {n} nodes: {gain.text(sign='+')}")
    if not count:
        return []
    said = f"in {len(below)} ({'; '.join(below)})" if below else "in none"
    return [
        "- Merged drafters against each of their parts, both with the best policy chosen on other prompts: better "
        f"beyond paired noise in {above} of {count} cells, worse beyond it {said}; {by_chance(count)}."
    ]


def sequoia_gains(found: dict[str, Any]) -> dict[str, Estimate]:
    """Sequoia's tree minus the complete binary one, paired, by drafter, temperature and size."""
    gains = {}
    for key, drafters in found["selected"].items():
        for name, cells in drafters.items():
            lengths = lengths_of(cells)
            for n in SEQUOIA_BUDGETS:
                gains[f"{name}, {key}, {n} nodes"] = difference(lengths[SEQUOIA][n], lengths[BINARY][n])
    return gains
