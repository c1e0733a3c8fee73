"""Sources of token trees."""

from treespec.drafters.heads.dflash import DFlash
from treespec.drafters.heads.eagle3 import Eagle3
from treespec.drafters.heads.medusa import Medusa
from treespec.drafters.lookup.recycling import TokenRecycling
from treespec.drafters.lookup.suffix import SuffixLookup
from treespec.drafters.lookup.suffix_store import SuffixStore
from treespec.drafters.lookup.warm_start import WarmStart
from treespec.drafters.merge.merge import Merge
from treespec.drafters.model.draft_model import DraftModel
from treespec.drafters.model.reencoding import ReEncoding
from treespec.drafters.model.vocabulary import SharedVocabulary
from treespec.heads.modules.medusa import MedusaHead, MedusaHeads

__all__ = [
    "DFlash",
    "DraftModel",
    "Eagle3",
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
