"""The random streams of a call."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Streams(NamedTuple):
    """Three independent random streams."""

    draft: torch.Generator
    coins: torch.Generator
    draws: torch.Generator

    @classmethod
    def from_seed(cls, seed: int, device: torch.device) -> Streams:
        parent = torch.Generator("cpu").manual_seed(seed)
        seeds = torch.randint(2**62, (3,), generator=parent, device="cpu").tolist()
        # Coins and draws come from the host, so that they are the same on every device.
        return cls(*(torch.Generator(on).manual_seed(s) for on, s in zip((device, "cpu", "cpu"), seeds, strict=True)))


def known_seed(seed: int | None) -> int:
    """The seed; for None one draw from torch's default generator, so that `torch.manual_seed` is enough."""
    return int(torch.randint(2**62, (), device="cpu").item()) if seed is None else seed
