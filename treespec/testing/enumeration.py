"""Every way in which coins and draws can fall, one run for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from treespec.protocols import RandomSource

_Result = TypeVar("_Result")
_SLACK = 1e-9


class EnumeratingSource:
    """Takes the branches that a script names, and the first one where the script ends; multiplies their weights.

    Each coin and each draw may be used once: a real random source would return the same number again.
    """

    def __init__(self, script: Sequence[int] = ()) -> None:
        self._script = script
        self._coins: set[int] = set()
        self._draws: set[int] = set()
        self.weight: Any = 1
        self.taken: list[int] = []
        self.num_options: list[int] = []

    def flip(self, node: int, prob: Any) -> bool:
        assert node not in self._coins, f"the coin of node {node} is used twice"
        assert -_SLACK <= prob <= 1 + _SLACK, f"node {node} is accepted with probability {prob}"
        self._coins.add(node)
        return self._branch([(True, prob), (False, 1 - prob)])

    def pick(self, node: int, weights: Any) -> int:
        assert node not in self._draws, f"the draw of node {node} is used twice"
        self._draws.add(node)
        total = weights.sum()
        assert total > 0, f"the weights at node {node} have no mass: {weights}"
        return self._branch([(token, weight / total) for token, weight in enumerate(weights)])

    def _branch(self, outcomes: list[tuple[Any, Any]]) -> Any:
        options = [(outcome, weight) for outcome, weight in outcomes if weight > 0]
        position = len(self.taken)
        choice = self._script[position] if position < len(self._script) else 0
        outcome, weight = options[choice]
        self.weight = self.weight * weight
        self.taken.append(choice)
        self.num_options.append(len(options))
        return outcome


def enumerate_traces(run: Callable[[RandomSource], _Result]) -> Iterator[tuple[Any, _Result]]:
    """Every outcome of `run`, a pure function of its random source, with its weight; weights add up to one."""
    script: list[int] = []
    while True:
        rng = EnumeratingSource(script)
        result = run(rng)
        yield rng.weight, result
        script, num_options = rng.taken, rng.num_options
        while script and script[-1] + 1 == num_options[len(script) - 1]:
            script.pop()
        if not script:
            return
        script[-1] += 1
