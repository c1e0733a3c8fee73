"""Trained draft heads in plain torch, one folder per kind: its module, the reader of its files, its drafter.

What kinds share: `modules` (layers, rotary positions, caches), `files` (formats), `drafting` (the target's features).
"""

from typing import TYPE_CHECKING

from treespec.registry import lazy

if TYPE_CHECKING:
    from treespec.heads.assistant.drafter import Assistant
    from treespec.heads.dflash.drafter import DFlash
    from treespec.heads.eagle.drafter import Eagle
    from treespec.heads.eagle3.drafter import Eagle3
    from treespec.heads.medusa.drafter import Medusa
    from treespec.heads.medusa.module import MedusaHead, MedusaHeads
    from treespec.heads.mtp.drafter import Mtp
    from treespec.heads.peagle.drafter import PEagle

__all__ = ["Assistant", "DFlash", "Eagle", "Eagle3", "Medusa", "MedusaHead", "MedusaHeads", "Mtp", "PEagle"]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "assistant.drafter": "Assistant",
        "dflash.drafter": "DFlash",
        "eagle.drafter": "Eagle",
        "eagle3.drafter": "Eagle3",
        "medusa.drafter": "Medusa",
        "medusa.module": "MedusaHead MedusaHeads",
        "mtp.drafter": "Mtp",
        "peagle.drafter": "PEagle",
    },
)
