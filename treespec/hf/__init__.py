"""All that treespec does with transformers: models, caches, masks, `generate`."""

from treespec.hf.cache import new_cache
from treespec.hf.causal_lm import CausalLM
from treespec.hf.compaction import commit_cache
from treespec.hf.config import from_config
from treespec.hf.decoder import SpeculativeDecoder
from treespec.hf.draft import draft_model
from treespec.hf.head_export import export_head
from treespec.hf.heads import load_drafter, load_head, shipped_head
from treespec.hf.mask import tree_attention_mask
from treespec.hf.scorers import make_exit_scorer, make_scorer
from treespec.hf.speculation import TreeSpeculation, generate

__all__ = [
    "CausalLM",
    "SpeculativeDecoder",
    "TreeSpeculation",
    "commit_cache",
    "draft_model",
    "export_head",
    "from_config",
    "generate",
    "load_drafter",
    "load_head",
    "make_exit_scorer",
    "make_scorer",
    "new_cache",
    "shipped_head",
    "tree_attention_mask",
]
