"""Sources of token trees."""

from treespec.drafters.draft_model import DraftModel
from treespec.drafters.merge import Merge
from treespec.drafters.recycling import TokenRecycling
from treespec.drafters.reencoding import ReEncoding
from treespec.drafters.suffix import SuffixLookup
from treespec.drafters.vocabulary import SharedVocabulary

__all__ = ["DraftModel", "Merge", "ReEncoding", "SharedVocabulary", "SuffixLookup", "TokenRecycling"]
