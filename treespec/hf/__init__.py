"""All that treespec does with transformers: models, caches, masks, `generate`; and `cpu`, faster passes on a CPU."""

from treespec.checks import installed_versions, warn_of_untested
from treespec.heads.files.fitting import shipped_head
from treespec.hf import cpu
from treespec.hf.attention.mask import tree_attention_mask
from treespec.hf.cache.caches import new_cache
from treespec.hf.cache.slot_cache import commit_cache
from treespec.hf.cpu.optimized_model import OptimizedModel, optimize, restore
from treespec.hf.generation.decoder import SpeculativeDecoder
from treespec.hf.generation.grammar import GrammarProcessor
from treespec.hf.generation.grammar_states import GrammarState, token_enforcer
from treespec.hf.generation.speculation import TreeSpeculation, generate
from treespec.hf.generation.vllm_config import from_config
from treespec.hf.introspect import CACHE_NAME
from treespec.hf.loading.drafters import make_draft_model
from treespec.hf.loading.heads import load_drafter, load_head
from treespec.hf.models.make_scorer import make_scorer
from treespec.hf.models.tree_scorer import TreeScorer

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
    "cpu",
    "from_config",
    "generate",
    "load_drafter",
    "load_head",
    "make_draft_model",
    "make_scorer",
    "new_cache",
    "optimize",
    "restore",
    "shipped_head",
    "token_enforcer",
    "tree_attention_mask",
]
