"""Sources of token trees."""

from typing import TYPE_CHECKING

from treespec.registry import lazy

if TYPE_CHECKING:
    from treespec.drafters.lookup.recycling import TokenRecycling
    from treespec.drafters.lookup.suffix import SuffixLookup
    from treespec.drafters.lookup.suffix_store import SuffixStore
    from treespec.drafters.lookup.warm_start import WarmStart
    from treespec.drafters.merge.merge import Merge
    from treespec.drafters.model.draft_model import DraftModel
    from treespec.drafters.model.reencoding import ReEncoding
    from treespec.drafters.model.vocabulary import SharedVocabulary

__all__ = [
    "DraftModel",
    "Merge",
    "ReEncoding",
    "SharedVocabulary",
    "SuffixLookup",
    "SuffixStore",
    "TokenRecycling",
    "WarmStart",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "lookup.recycling": "TokenRecycling",
        "lookup.suffix": "SuffixLookup",
        "lookup.suffix_store": "SuffixStore",
        "lookup.warm_start": "WarmStart",
        "merge.merge": "Merge",
        "model.draft_model": "DraftModel",
        "model.reencoding": "ReEncoding",
        "model.vocabulary": "SharedVocabulary",
    },
)
