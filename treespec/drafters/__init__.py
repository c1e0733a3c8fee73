"""Sources of token trees."""

from treespec.drafters.draft_model import DraftModel
from treespec.drafters.merge import Merge
from treespec.drafters.recycling import TokenRecycling
from treespec.drafters.suffix import SuffixLookup

__all__ = ["DraftModel", "Merge", "SuffixLookup", "TokenRecycling"]
