"""Drafts with a checkpoint's own multi-token-prediction layers: depth i by layer i mod J.

Every token runs through all layers, so that each layer has the keys of all tokens. Layer l reads what layer l - 1 gave
at the token before; at l = 0 that is the target's state, or, deeper in a draft, where it is not known, the last layer's
output. With one layer this is a chain or tree over its own outputs, as in EAGLE.

Axis letters: J layers, Z the outputs of all layers one after the other.
"""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from treespec.heads.drafting.levels import LevelDrafter, keep_where_none
from treespec.heads.drafting.unread_features import Pairs
from treespec.heads.modules.kv_cache import DraftingCache
from treespec.heads.mtp.module import MtpHead
from treespec.protocols import Frontier, Session
from treespec.tree.transfer import upload


class Mtp(LevelDrafter[MtpHead]):
    """Drafts with MTP layers; `treespec.load_mtp` reads them. See `LevelDrafter`, `HeadDrafter` and `Drafter`."""

    _head_type = MtpHead
    _ends: Float[Tensor, "B 1 Z"]
    """The outputs at the last token that was read of every row."""

    @property
    def _window(self) -> int | None:
        return self.head.config.window

    @property
    def num_weights(self) -> int:
        """The number of weights that a draft pass reads, those of the target's output layer included."""
        head = self.head
        return super().num_weights + (0 if head.rows else head.config.vocab_size * head.config.hidden_size)

    def start(self, session: Session) -> None:
        """See `HeadDrafter`."""
        super().start(session)
        head = self.head
        size = head.config.num_layers * head.config.hidden_size
        self._ends = torch.zeros(session.history.num_rows, 1, size, dtype=head.dtype, device=head.target_ids.device)

    def select_rows(self, rows: Sequence[int]) -> None:
        super().select_rows(rows)
        (index,) = upload(self._ends.device, torch.tensor(list(rows), dtype=torch.int64, device="cpu"))
        self._ends = self._ends[index]

    def _read_committed(self, pairs: Pairs, keys: DraftingCache, offsets: list[int]) -> Float[Tensor, "B 1 Z"]:
        self._ends = keep_where_none(pairs, super()._read_committed(pairs, keys, offsets), self._ends)
        return self._ends

    def _run_text(self, tokens: Tensor, states: Tensor, positions: Tensor, mask: Tensor, keys: DraftingCache) -> Tensor:
        return self.head.run_text(tokens, states.to(self._ends), self._ends, positions, mask, keys)

    def _read(self, states: Float[Tensor, "B F Z"], frontier: Frontier) -> tuple[Tensor, Tensor]:
        count = self.head.config.num_layers
        if count == 1:
            return self.head.read(states), states
        by_layer = states.unflatten(-1, (count, -1))
        (numbers,) = upload(states.device, frontier.depths % count)
        index = numbers[..., None, None].expand(-1, -1, 1, by_layer.shape[-1])
        return self.head.read(by_layer.gather(2, index).squeeze(2)), by_layer.roll(1, 2).flatten(2)

    def _mask(
        self, is_seen: Bool[np.ndarray, "B F S"], queries: Int[np.ndarray, "B F"], keys: Int[np.ndarray, "#B S"]
    ) -> Bool[np.ndarray, "B #J F S"]:
        """Layer l has nothing to read at the first l tokens: their keys are not attended, except by each other."""
        numbers = np.arange(self.head.config.num_layers)[:, None, None]
        is_real = (keys[:, None, None] >= numbers) | (queries[:, None, :, None] < numbers)
        return is_seen[:, None] & is_real
