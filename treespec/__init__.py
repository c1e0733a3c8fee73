"""treespec: exact tree speculative decoding for any Hugging Face causal language model."""

from treespec import errors, protocols
from treespec.drafters import DraftModel, Eagle3, Merge, SuffixLookup, SuffixStore, TokenRecycling, WarmStart
from treespec.errors import TreespecError, TreespecWarning
from treespec.hf import (
    SpeculativeDecoder,
    TreeScorer,
    TreeSpeculation,
    check,
    commit_cache,
    from_config,
    generate,
    load_drafter,
    new_cache,
    optimize,
    restore,
    shipped_head,
    tree_attention_mask,
)
from treespec.policies import BestFirst, Chain, Control, KAry, Paths, Sequoia
from treespec.tree import TokenTree, TreeBatch, Verdict
from treespec.verification import verify

__version__ = "0.1.0"

__all__ = [
    "BestFirst",
    "Chain",
    "Control",
    "DraftModel",
    "Eagle3",
    "KAry",
    "Merge",
    "Paths",
    "Sequoia",
    "SpeculativeDecoder",
    "SuffixLookup",
    "SuffixStore",
    "TokenRecycling",
    "TokenTree",
    "TreeBatch",
    "TreeScorer",
    "TreeSpeculation",
    "TreespecError",
    "TreespecWarning",
    "Verdict",
    "WarmStart",
    "check",
    "commit_cache",
    "errors",
    "from_config",
    "generate",
    "load_drafter",
    "new_cache",
    "optimize",
    "protocols",
    "restore",
    "shipped_head",
    "tree_attention_mask",
    "verify",
]
