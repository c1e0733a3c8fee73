"""Cells of a study: one combination of factors each."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Self

from treespec.checks import check_count, check_number
from treespec.errors import ConfigError
from treespec.literature import StochasticBeam, dyspec, eagle2, opt_tree
from treespec.policies import BestFirst, Chain, Control, as_policy
from treespec.protocols import TreePolicy
from treespec.registry import Registry
from treespec.verification import get_rule

PLAIN, AUTO, CHAIN = "plain", "auto", "chain"
SHAPES: Registry[Callable[[int, int | None], TreePolicy]] = Registry(
    "policy of studies",
    {
        AUTO: lambda budget, depth: Control(budget),
        CHAIN: lambda budget, depth: Chain(max(budget - 1, 1)),
        "tree": lambda budget, depth: as_policy(budget) if depth is None else BestFirst(budget, depth=depth),
        "selected": lambda budget, depth: BestFirst(budget, "selected", depth=depth),
        "dyspec": lambda budget, depth: dyspec(budget, depth),
        "eagle2": lambda budget, depth: eagle2(budget, depth=depth or 6),
        "opt_tree": lambda budget, depth: opt_tree(budget, depth=depth or 10),
        "stochastic_beam": lambda budget, depth: StochasticBeam(max((budget - 1) // (depth or 4), 1), depth or 4),
    },
)
"""Policies of a study by name: of a budget of nodes, root included, and a depth; None: the policy's own."""
SHAPES.taken["policy without a draft"] = {PLAIN}
NO_DRAFTER = "none"


@dataclass(frozen=True)
class Cell:
    """One combination of factors.

    `drafter`: names as in `named_drafters`, joined by " + ". `policy`: "plain" or one of `SHAPES`. `budget`: nodes of a
    tree, root included. `processors`: more arguments of `generate` as JSON, such as {"repetition_penalty": 1.2}.
    `batch`: prompts decoded together.

    Raises `ConfigError`: a value out of range, an unknown policy or rule.
    """

    drafter: str
    policy: str = "tree"
    budget: int = 8
    depth: int | None = None
    rule: str = "auto"
    temperature: float = 0.0
    top_p: float = 1.0
    processors: str = "{}"
    batch: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        if self.policy not in (PLAIN, *SHAPES):
            raise ConfigError(f"a study's policy must be one of {PLAIN}, {', '.join(SHAPES)}; got {self.policy!r}")
        if not isinstance(self.drafter, str) or not self.drafter:
            raise ConfigError(f"a study's drafter must be names such as 'recycling + suffix', got {self.drafter!r}")
        for name in ("budget", "batch"):
            check_count(name, getattr(self, name))
        if self.depth is not None:
            check_count("depth", self.depth)
        check_number("temperature", self.temperature, lambda t: t >= 0, "not be negative")
        check_number("top_p", self.top_p, lambda p: 0 < p <= 1, "be above 0 and at most 1")
        if self.rule != "auto":
            get_rule(self.rule)
        check_number(
            "seed", self.seed, lambda n: isinstance(n, int) and 0 <= n < 2**31, "be an int from 0 to 2**31 - 1"
        )
        if not isinstance(self.processors, str) or not self.processors.startswith("{"):
            raise ConfigError(f"a study's processors must be mappings of generate's arguments, got {self.processors!r}")

    def policy_object(self) -> TreePolicy:
        """A new policy."""
        return SHAPES[self.policy](self.budget, self.depth)

    def generate_arguments(self) -> dict[str, Any]:
        """The arguments for transformers' `generate`."""
        more = json.loads(self.processors)
        if self.temperature == 0:
            return {"do_sample": False, **more}
        return {"do_sample": True, "temperature": self.temperature, "top_p": self.top_p, "top_k": 0, **more}

    def without_unused(self) -> Self:
        """With what does not count for this policy and temperature at its default, so that equal cells are equal."""
        found = self
        if self.temperature == 0:
            found = replace(found, top_p=1.0, seed=0)
        if self.policy == PLAIN:
            return replace(found, drafter=NO_DRAFTER, budget=1, depth=None, rule="auto")
        return replace(found, depth=None) if self.policy in (AUTO, CHAIN) else found


FACTORS = tuple(field.name for field in fields(Cell))
PAIRED = ("temperature", "top_p", "processors", "batch", "seed")
"""Cells that have these in common are run one after the other on the same prompts."""


def level_of(name: str, value: Any) -> Any:
    """A level of a factor as a cell has it. Raises `ConfigError`: not of the kind that the factor has."""
    if name == "processors":
        return json.dumps(dict(value), sort_keys=True) if isinstance(value, Mapping) else None
    if name == "drafter" and isinstance(value, list) and all(isinstance(part, str) for part in value):
        return " + ".join(value)
    if name in ("temperature", "top_p") and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    return value
