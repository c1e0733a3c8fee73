"""P-EAGLE's draft head (Amazon 2025): that of EAGLE-3, trained to draft several tokens in one pass.

After the last committed token, whose feature predicts the first drafted one, come mask tokens with one learned state in
place of the target's. The one at depth d predicts the token after it from the context and the masks before it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from treespec.heads.eagle3.module import Eagle3Config, Eagle3Head


@dataclass(frozen=True)
class PEagleConfig(Eagle3Config):
    """The shape of a P-EAGLE head; see `Eagle3Config`."""

    mask_token: int = 0  # The input id where the token is not known.
    num_depths: int = 8  # D, how many tokens a pass drafts.

    algorithm = "peagle"


class PEagleHead(Eagle3Head):
    """The head as a module; see `DraftHead` for the arguments. `mask_hidden` [Y] stands for the target's states."""

    config: PEagleConfig  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, config: PEagleConfig, embedding: Tensor, target_ids: Tensor) -> None:
        super().__init__(config, embedding, target_ids)
        self.mask_hidden = nn.Parameter(torch.zeros(self.fc.in_features, dtype=torch.float32, device="cpu"))
