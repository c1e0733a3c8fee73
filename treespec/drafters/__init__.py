"""Sources of token trees."""

from treespec.drafters.block import BlockDrafter
from treespec.drafters.draft_model import DraftModel
from treespec.drafters.eagle import Eagle3
from treespec.drafters.early_exit import EarlyExit
from treespec.drafters.medusa import Medusa
from treespec.drafters.medusa_heads import MedusaHead, MedusaHeads
from treespec.drafters.merge import Merge
from treespec.drafters.recycling import TokenRecycling
from treespec.drafters.reencoding import ReEncoding
from treespec.drafters.suffix import SuffixLookup
from treespec.drafters.suffix_store import SuffixStore
from treespec.drafters.vocabulary import SharedVocabulary
from treespec.drafters.warm import WarmStart

__all__ = [
    "BlockDrafter",
    "DraftModel",
    "Eagle3",
    "EarlyExit",
    "Medusa",
    "MedusaHead",
    "MedusaHeads",
    "Merge",
    "ReEncoding",
    "SharedVocabulary",
    "SuffixLookup",
    "SuffixStore",
    "TokenRecycling",
    "WarmStart",
]
