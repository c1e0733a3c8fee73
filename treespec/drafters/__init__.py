"""Sources of token trees."""

from typing import TYPE_CHECKING

from treespec.registry import lazy

if TYPE_CHECKING:
    from treespec.drafters.lookup.recycling import TokenRecycling as TokenRecycling
    from treespec.drafters.lookup.suffix import SuffixLookup as SuffixLookup
    from treespec.drafters.lookup.suffix_store import SuffixStore as SuffixStore
    from treespec.drafters.lookup.warm_start import WarmStart as WarmStart
    from treespec.drafters.merge.merge import Merge as Merge
    from treespec.drafters.model.draft_model import DraftModel as DraftModel
    from treespec.drafters.model.reencoding import ReEncoding as ReEncoding
    from treespec.drafters.model.vocabulary import SharedVocabulary as SharedVocabulary

__getattr__, __dir__, __all__ = lazy(__name__)
