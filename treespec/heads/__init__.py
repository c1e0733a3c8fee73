"""Trained draft heads in plain torch, one folder per kind: its module, the reader of its files, its drafter.

What kinds share: `modules` (layers, rotary positions, caches), `files` (formats), `drafting` (the target's features).
"""

from typing import TYPE_CHECKING

from treespec.registry import lazy

if TYPE_CHECKING:
    from treespec.heads.assistant.drafter import Assistant as Assistant
    from treespec.heads.dflash.drafter import DFlash as DFlash
    from treespec.heads.eagle.drafter import Eagle as Eagle
    from treespec.heads.eagle3.drafter import Eagle3 as Eagle3
    from treespec.heads.medusa.drafter import Medusa as Medusa
    from treespec.heads.medusa.module import MedusaHead as MedusaHead
    from treespec.heads.medusa.module import MedusaHeads as MedusaHeads
    from treespec.heads.mtp.drafter import Mtp as Mtp
    from treespec.heads.peagle.drafter import PEagle as PEagle

__getattr__, __dir__, __all__ = lazy(__name__)
