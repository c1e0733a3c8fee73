"""Conversion of a drafter, a model, or a list of them to one `Drafter`."""

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from treespec.errors import ConfigError
from treespec.hf.models.make_scorer import make_scorer
from treespec.protocols import Drafter

AnyDrafter = Drafter | PreTrainedModel


def as_drafter(drafter: AnyDrafter | Sequence[AnyDrafter]) -> Drafter:
    """A drafter from a drafter, a model, or a list of them, which are merged. Raises `ConfigError`: anything else."""
    if isinstance(drafter, Drafter) and not isinstance(drafter, type):
        return drafter
    if isinstance(drafter, torch.nn.Module) and hasattr(drafter, "config"):  # Wrappers too: adapted, compiled.
        from treespec.drafters import DraftModel  # Others need not load it.

        return DraftModel(make_scorer(drafter))
    if isinstance(drafter, Sequence) and not isinstance(drafter, str) and drafter:
        from treespec.drafters import Merge

        parts = [as_drafter(part) for part in drafter]
        return parts[0] if len(parts) == 1 else Merge(parts)
    raise ConfigError(
        f"expected a Drafter, a causal language model or a list of them, got {drafter!r:.60}; for a model on "
        "disk load it first with AutoModelForCausalLM.from_pretrained, a head with load_drafter; a name such as "
        "'suffix' stands for treespec.drafters.registry.DRAFTERS['suffix']()"
    )
