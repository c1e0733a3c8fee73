"""What the learners of all draft heads have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from treespec.heads.files.export import save_head
from treespec.heads.modules.dflash import DFlashHead
from treespec.heads.modules.eagle3 import Eagle3Head

Head = TypeVar("Head", Eagle3Head, DFlashHead)


class HeadLearner(nn.Module, Generic[Head]):
    """Everything of a head's `Learner` except its drafts.

    Args:
        head: in float32.
        num_depths: of its drafts.
    """

    def __init__(self, head: Head, num_depths: int) -> None:
        super().__init__()
        self.head: Head = head
        self.num_depths = num_depths
        self._hidden_layers = head.config.hidden_layers or ()
        head.lm_head.requires_grad_(False)  # The rows stay the target's, and are left out of the files.

    @property
    def target_ids(self) -> Tensor:
        """See `Learner`."""
        return self.head.target_ids

    @property
    def output_weight(self) -> Tensor:
        """See `Learner`."""
        return self.head.lm_head.weight

    @property
    def reads(self) -> dict[str, Any]:
        """See `Learner`."""
        return {"hidden_layers": list(self._hidden_layers)}

    def save(self, folder: Path, name: str | None, dtype: torch.dtype) -> None:
        """Write the head in the speculators format."""
        save_head(self._complete_head(), self._hidden_layers, folder, name, has_lm_head=False, dtype=dtype)

    def _complete_head(self) -> Head:
        """The head with all modules that its files hold."""
        return self.head
