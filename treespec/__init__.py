"""treespec: exact tree speculative decoding for any Hugging Face causal language model."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from treespec import errors
from treespec.checks import needed_versions
from treespec.errors import TreespecError, TreespecWarning

if TYPE_CHECKING:
    from treespec import protocols
    from treespec.drafters import DraftModel, Merge, SuffixLookup, SuffixStore, TokenRecycling, WarmStart
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

ROOMS = {
    "cpu": (),
    "drafters": ("DraftModel", "Merge", "SuffixLookup", "SuffixStore", "TokenRecycling", "WarmStart"),
    "grammars": (),
    "heads": ("Eagle3",),
    "hf": (),
    "lab": ("TraceFile", "check", "diagnose", "load_setting", "read_trace", "save_setting"),
    "policies": ("BestFirst", "Chain", "Control", "KAry", "Paths", "Sequoia"),
    "protocols": (),
    "sampling": (),
    "speedup": ("speed_up",),
    "tree": ("TokenTree", "TreeBatch", "Verdict"),
    "verification": ("verify",),
}
"""Names here by the room that they are in; all others are in `hf`.

What is public in them and not here is named with them: `treespec.cpu.prepack_linears`.
"""
HOMES = {name: room for room, names in ROOMS.items() for name in names}

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


def __getattr__(name: str) -> Any:
    """What is used is imported then: the processes of a vLLM that has the plugin use little, and no transformers."""
    if name not in (*__all__, *ROOMS):
        raise AttributeError(f"module 'treespec' has no attribute {name!r}")
    room = name if name in ROOMS else HOMES.get(name, "hf")
    try:
        module = import_module(f"treespec.{room}")
    except ImportError as error:
        raise ImportError(f"treespec.{name} works with {needed_versions()}: {error}") from error
    value = globals()[name] = module if name == room else getattr(module, name)
    return value
