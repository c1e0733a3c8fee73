"""What one call asks of the engine and what it gets back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from treespec.engine.observer import Observer
from treespec.engine.ranks import Alone, Ranks
from treespec.engine.stats import SpeculationStats
from treespec.protocols import PathProcessors, TreePolicy, VerificationRule
from treespec.sampling import NoProcessors


class Stopping(Protocol):
    """Where generation ends."""

    def num_kept(self, row: int, ids: Tensor, new_tokens: Sequence[int]) -> int | None:
        """How many of the new tokens are kept, up to and including the one that stops the row; None: go on.

        `ids` int64 [L] holds the whole row, left padding and new tokens included; `row` is the caller's batch row.
        """
        ...

    def max_new(self, row: int, length: int, num_padding: int) -> int:
        """How many tokens a row of `length` ids, `num_padding` of them padding, may still get."""
        ...


class Streams(NamedTuple):
    """Three independent random streams."""

    draft: torch.Generator
    coins: torch.Generator
    draws: torch.Generator

    @classmethod
    def from_seed(cls, seed: int | None, device: torch.device) -> Streams:
        """See `known_seed` for `seed=None`."""
        parent = torch.Generator("cpu").manual_seed(known_seed(seed))
        seeds = torch.randint(2**62, (3,), generator=parent, device="cpu").tolist()
        # Coins and draws come from the host, so that they are the same on every device.
        return cls(*(torch.Generator(on).manual_seed(s) for on, s in zip((device, "cpu", "cpu"), seeds, strict=True)))


def known_seed(seed: int | None) -> int:
    """The seed; for None one draw from torch's default generator, so that `torch.manual_seed` is enough."""
    return int(torch.randint(2**62, (), device="cpu").item()) if seed is None else seed


@dataclass(frozen=True)
class Request:
    """Everything one call of `speculate` needs in addition to the models.

    Args:
        prompt_ids: P >= 1, left-padded.
        prompt_mask: False on padding.
        stopping: where each row ends.
        policy: shapes the trees of drafters that build them from next-token distributions; others ignore it.
        verification: "auto", a rule's name or a rule.
        seed: see `known_seed`.
        pass_ms: measured milliseconds of the target's pass by number of nodes, for `Control`.
        observers: watch the call, called in this order; statistics are kept anyway.
        ranks: the processes that run the target together. What could differ between them is the first one's: the seed,
            trees, verdicts, measured times.
    """

    prompt_ids: Int[Tensor, "B P"]
    prompt_mask: Bool[Tensor, "B P"]
    stopping: Stopping
    policy: TreePolicy | None = None
    verification: str | VerificationRule = "auto"
    processors: PathProcessors = field(default_factory=NoProcessors)
    is_sampling: bool = True
    seed: int | None = None
    pass_ms: Mapping[int, float] | None = None
    observers: Sequence[Observer] = ()
    ranks: Ranks = field(default_factory=Alone)


@dataclass
class Result:
    """`tokens[b]`: everything emitted for row b; counters."""

    tokens: list[list[int]]
    stats: SpeculationStats
