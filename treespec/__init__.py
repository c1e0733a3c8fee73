"""treespec: exact tree speculative decoding for any Hugging Face causal language model."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from treespec import errors, protocols
from treespec.checks import needed_versions
from treespec.drafters import DraftModel, Merge, SuffixLookup, SuffixStore, TokenRecycling, WarmStart
from treespec.errors import TreespecError, TreespecWarning
from treespec.heads import Eagle3
from treespec.policies import BestFirst, Chain, Control, KAry, Paths, Sequoia
from treespec.tree import TokenTree, TreeBatch, Verdict
from treespec.verification import verify

if TYPE_CHECKING:
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
    from treespec.speedup import speed_up

__version__ = "0.1.0"

ROOMS = ("cpu", "grammars", "hf", "lab", "speedup")
"""What is public in them and not here is named with them: `treespec.cpu.prepack_linears`."""
LAB = ("TraceFile", "check", "diagnose", "load_setting", "read_trace", "save_setting")
ADD_ONS = dict.fromkeys(LAB, "lab") | {"speed_up": "speedup"}
"""Names that are in another room than `treespec.hf`."""

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
    """What needs transformers is imported at its first use: `treespec.vllm` needs none."""
    if name not in (*__all__, *ROOMS):
        raise AttributeError(f"module 'treespec' has no attribute {name!r}")
    room = name if name in ROOMS else ADD_ONS.get(name, "hf")
    try:
        module = import_module(f"treespec.{room}")
    except ImportError as error:
        raise ImportError(f"treespec.{name} works with {needed_versions()}: {error}") from error
    value = globals()[name] = module if name == room else getattr(module, name)
    return value
