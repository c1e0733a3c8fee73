"""The target's last hidden state before every row's root: what heads read that keep nothing else of the text."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from treespec.protocols import Session, VerifiedStep
from treespec.tree.transfer import upload

LAST = -1


class RootFeatures:
    """Follows a call.

    Attributes:
        states: [B, H] on the call's device, from the first update on, that with the prompt's last token.
    """

    states: Float[Tensor, "B H"]

    def __init__(self, session: Session) -> None:
        self._session = session

    def update(self, step: VerifiedStep) -> None:
        """Keep the state at each row's last accepted node: the one that the next root was chosen after."""
        states = step.scores.hidden_states[LAST]
        nodes = [v.path[max(len(tokens) - 1, 0)] for v, tokens in zip(step.verdicts, step.emitted, strict=True)]
        index = upload(states.device, torch.arange(len(nodes), device="cpu"), torch.tensor(nodes, device="cpu"))
        self.states = states[index[0], index[1]].to(self._session.device)

    def select_rows(self, rows: Sequence[int]) -> None:
        """Keep only these rows, in this order."""
        (index,) = upload(self.states.device, torch.tensor(list(rows), device="cpu"))
        self.states = self.states[index]
