"""All that treespec does with transformers: models, caches, masks, `generate`; and what is public of its add-ons."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from treespec.checks import installed_versions, warn_of_untested
from treespec.heads.files.fitting import shipped_head
from treespec.hf.attention.mask import tree_attention_mask
from treespec.hf.cache.caches import new_cache
from treespec.hf.cache.slot_cache import commit_cache
from treespec.hf.decoder import SpeculativeDecoder
from treespec.hf.generation.speculation import TreeSpeculation, generate
from treespec.hf.introspect import CACHE_NAME
from treespec.hf.loading.drafters import make_draft_model
from treespec.hf.loading.heads import load_drafter, load_head
from treespec.hf.loading.mtp import load_mtp
from treespec.hf.models.make_scorer import make_scorer
from treespec.hf.models.tree_scorer import TreeScorer
from treespec.hf.vllm_config import from_config

if TYPE_CHECKING:
    from treespec.cpu import OptimizedModel, optimize, restore
    from treespec.grammars import GrammarProcessor, GrammarState, token_enforcer

warn_of_untested(installed_versions())

ROOMS = {
    "GrammarProcessor": "grammars",
    "GrammarState": "grammars",
    "OptimizedModel": "cpu",
    "optimize": "cpu",
    "restore": "cpu",
    "token_enforcer": "grammars",
}
"""What is in an add-on, which is imported when it is named."""

__all__ = [
    "CACHE_NAME",
    "GrammarProcessor",
    "GrammarState",
    "OptimizedModel",
    "SpeculativeDecoder",
    "TreeScorer",
    "TreeSpeculation",
    "commit_cache",
    "from_config",
    "generate",
    "load_drafter",
    "load_head",
    "load_mtp",
    "make_draft_model",
    "make_scorer",
    "new_cache",
    "optimize",
    "restore",
    "shipped_head",
    "token_enforcer",
    "tree_attention_mask",
]


def __getattr__(name: str) -> Any:
    """See `ROOMS`."""
    if name not in ROOMS:
        raise AttributeError(f"module 'treespec.hf' has no attribute {name!r}")
    return getattr(import_module(f"treespec.{ROOMS[name]}"), name)
