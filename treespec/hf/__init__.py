"""All that treespec does with transformers: models, caches, masks, `generate`; and what is public of its add-ons."""

from typing import TYPE_CHECKING

from treespec.checks import installed_versions, warn_of_untested
from treespec.registry import lazy

if TYPE_CHECKING:
    from treespec.cpu import OptimizedModel, optimize, restore
    from treespec.grammars import GrammarProcessor, GrammarState, token_enforcer
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

warn_of_untested(installed_versions())

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

__getattr__, __dir__ = lazy(
    __name__,
    {
        ".cpu": "OptimizedModel optimize restore",
        ".grammars": "GrammarProcessor GrammarState token_enforcer",
        ".heads.files.fitting": "shipped_head",
        "attention.mask": "tree_attention_mask",
        "cache.caches": "new_cache",
        "cache.slot_cache": "commit_cache",
        "decoder": "SpeculativeDecoder",
        "generation.speculation": "TreeSpeculation generate",
        "introspect": "CACHE_NAME",
        "loading.drafters": "make_draft_model",
        "loading.heads": "load_drafter load_head",
        "loading.mtp": "load_mtp",
        "models.make_scorer": "make_scorer",
        "models.tree_scorer": "TreeScorer",
        "vllm_config": "from_config",
    },
)
