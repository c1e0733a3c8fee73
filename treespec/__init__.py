"""treespec: exact tree speculative decoding for any Hugging Face causal language model."""

from typing import TYPE_CHECKING, Any

from treespec.registry import lazy

if TYPE_CHECKING:
    from treespec import errors, protocols
    from treespec.drafters import DraftModel, Merge, SuffixLookup, SuffixStore, TokenRecycling, WarmStart
    from treespec.errors import TreespecError, TreespecWarning
    from treespec.heads import Eagle3
    from treespec.hf import (
        CACHE_NAME,
        SpeculativeDecoder,
        TreeScorer,
        TreeSpeculation,
        commit_cache,
        from_config,
        generate,
        load_drafter,
        load_mtp,
        new_cache,
        optimize,
        restore,
        shipped_head,
        tree_attention_mask,
    )
    from treespec.lab import TraceFile, check, diagnose, load_setting, read_trace, save_setting
    from treespec.policies import BestFirst, Chain, Control, KAry, Paths, Sequoia
    from treespec.speedup import speed_up
    from treespec.tree import TokenTree, TreeBatch, Verdict
    from treespec.verification import verify

__version__ = "0.1.0"

__all__ = [
    "CACHE_NAME",
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
    "TraceFile",
    "TreeBatch",
    "TreeScorer",
    "TreeSpeculation",
    "TreespecError",
    "TreespecWarning",
    "Verdict",
    "WarmStart",
    "check",
    "commit_cache",
    "diagnose",
    "errors",
    "from_config",
    "generate",
    "load_drafter",
    "load_mtp",
    "load_setting",
    "new_cache",
    "optimize",
    "protocols",
    "read_trace",
    "restore",
    "save_setting",
    "shipped_head",
    "speed_up",
    "tree_attention_mask",
    "verify",
]

_load, __dir__ = lazy(
    __name__,
    dict.fromkeys(["checks", "data", "devices", "engine", "grammars", "literature", "protocols", "registry"], "")
    | dict.fromkeys(["sampling", "testing", "training", "viz"], "")
    | {
        "cpu": "optimize restore",
        "drafters": "DraftModel Merge SuffixLookup SuffixStore TokenRecycling WarmStart",
        "errors": "TreespecError TreespecWarning",
        "heads": "Eagle3",
        "hf": "CACHE_NAME SpeculativeDecoder TreeScorer TreeSpeculation commit_cache from_config generate load_drafter "
        "load_mtp new_cache shipped_head tree_attention_mask",
        "lab": "TraceFile check diagnose load_setting read_trace save_setting",
        "policies": "BestFirst Chain Control KAry Paths Sequoia",
        "speedup": "speed_up",
        "tree": "TokenTree TreeBatch Verdict",
        "verification": "verify",
    },
)


def __getattr__(name: str) -> Any:
    """What is named is imported at its first use; a library that is missing or too old is named in the error."""
    try:
        return _load(name)
    except ImportError as error:
        from treespec.checks import needed_versions

        raise ImportError(f"treespec.{name} works with {needed_versions()}: {error}") from error
