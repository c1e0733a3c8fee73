"""All that treespec does with transformers: models, caches, masks, `generate`."""

from typing import TYPE_CHECKING

from treespec.checks import installed_versions, warn_of_untested
from treespec.registry import lazy

if TYPE_CHECKING:
    from treespec.hf.generation.speculation import TreeSpeculation as TreeSpeculation
    from treespec.hf.generation.speculation import generate as generate
    from treespec.hf.loading.drafters import make_draft_model as make_draft_model
    from treespec.hf.loading.heads import load_head as load_head
    from treespec.hf.models.make_scorer import make_scorer as make_scorer
    from treespec.hf.models.tree_scorer import TreeScorer as TreeScorer
    from treespec.hf.vllm_config import from_config as from_config

warn_of_untested(installed_versions())

__getattr__, __dir__, __all__ = lazy(__name__)
