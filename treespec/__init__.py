"""treespec: exact tree speculative decoding for any Hugging Face causal language model."""

from typing import TYPE_CHECKING, Any

from treespec.registry import lazy

if TYPE_CHECKING:
    from treespec import errors as errors
    from treespec import protocols as protocols
    from treespec.cpu import optimize as optimize
    from treespec.cpu import restore as restore
    from treespec.drafters import DraftModel as DraftModel
    from treespec.drafters import Merge as Merge
    from treespec.drafters import SuffixLookup as SuffixLookup
    from treespec.drafters import SuffixStore as SuffixStore
    from treespec.drafters import TokenRecycling as TokenRecycling
    from treespec.drafters import WarmStart as WarmStart
    from treespec.engine.observer import Observer as Observer
    from treespec.errors import TreespecError as TreespecError
    from treespec.errors import TreespecWarning as TreespecWarning
    from treespec.heads import Eagle3 as Eagle3
    from treespec.heads.files.fitting import shipped_head as shipped_head
    from treespec.hf import TreeScorer as TreeScorer
    from treespec.hf import TreeSpeculation as TreeSpeculation
    from treespec.hf import from_config as from_config
    from treespec.hf import generate as generate
    from treespec.hf.attention.mask import tree_attention_mask as tree_attention_mask
    from treespec.hf.cache.caches import new_cache as new_cache
    from treespec.hf.cache.slot_cache import commit_cache as commit_cache
    from treespec.hf.decoder import SpeculativeDecoder as SpeculativeDecoder
    from treespec.hf.introspect import CACHE_NAME as CACHE_NAME
    from treespec.hf.loading.heads import load_drafter as load_drafter
    from treespec.hf.loading.mtp import load_mtp as load_mtp
    from treespec.lab import TraceFile as TraceFile
    from treespec.lab import check as check
    from treespec.lab import diagnose as diagnose
    from treespec.lab import load_setting as load_setting
    from treespec.lab import read_trace as read_trace
    from treespec.lab import save_setting as save_setting
    from treespec.policies import BestFirst as BestFirst
    from treespec.policies import Chain as Chain
    from treespec.policies import Control as Control
    from treespec.policies import KAry as KAry
    from treespec.policies import Paths as Paths
    from treespec.policies import Sequoia as Sequoia
    from treespec.speedup import speed_up as speed_up
    from treespec.tree import TokenTree as TokenTree
    from treespec.tree import TreeBatch as TreeBatch
    from treespec.tree import Verdict as Verdict
    from treespec.verification import verify as verify

__version__ = "0.1.0"

_load, __dir__, __all__ = lazy(
    __name__, "checks data devices engine grammars literature registry sampling testing training viz"
)


def __getattr__(name: str) -> Any:
    """Import a public name at its first use; the error names a library that is missing or too old."""
    try:
        return _load(name)
    except ImportError as error:
        from treespec.checks import needed_versions

        raise ImportError(f"treespec.{name} works with {needed_versions()}: {error}") from error
