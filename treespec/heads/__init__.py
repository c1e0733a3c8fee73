"""Trained draft heads in plain torch, one folder per kind: its module, the reader of its files, its drafter.

What kinds share: `modules` (layers, rotary positions, caches), `files` (formats), `drafting` (the target's features).
"""

# Files without a kind's name are of the first kind here that takes them; EAGLE-3's sign, an `fc`, all of them have.
from treespec.heads.assistant.drafter import Assistant
from treespec.heads.dflash.drafter import DFlash
from treespec.heads.eagle.drafter import Eagle
from treespec.heads.eagle3.drafter import Eagle3
from treespec.heads.medusa.drafter import Medusa
from treespec.heads.medusa.module import MedusaHead, MedusaHeads
from treespec.heads.mtp.drafter import Mtp
from treespec.heads.peagle.drafter import PEagle

__all__ = ["Assistant", "DFlash", "Eagle", "Eagle3", "Medusa", "MedusaHead", "MedusaHeads", "Mtp", "PEagle"]
