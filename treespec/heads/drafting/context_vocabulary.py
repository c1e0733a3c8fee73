"""The draft vocabulary of a call: a head's own tokens, and those of the texts so far that it lacks.

A head with an output row for each of the most frequent tokens alone never drafts the others: names, and the rare words
of a subject, most of which are in the text already when they are due. Their output rows are made from their embeddings,
by the linear map from embeddings to output rows that explains the head's own rows best.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from treespec.heads.modules.base import DraftHead
from treespec.protocols import History

LEAST_EXPLAINED = 0.5
"""The share of the rows' variance that the map explains, from which on it is used."""


class ContextVocabulary:
    """The tokens that a call's drafts are chosen from.

    Which tokens there are depends on the committed text alone, and drafts are drawn from what is stored with them: the
    output's distribution is the target's, as with any vocabulary.
    """

    def __init__(self, head: DraftHead, output_map: Float[Tensor, "_ H"], history: History) -> None:
        """`output_map`: see `fit_output_map`; `history` grows with the call."""
        self._head, self._map, self._history = head, output_map, history
        self.forget()

    def forget(self) -> None:
        """Rows have left: their tokens are no longer drafted for the others."""
        self._lengths = list[int]()
        self._is_known = torch.zeros(self._head.config.vocab_size, dtype=torch.bool, device="cpu")
        self._is_known[self._head.target_ids.cpu()] = True
        self._ids = self._head.target_ids
        self._rows = self._map.new_zeros(0, self._map.shape[1])

    def read(self) -> tuple[Int[Tensor, "_"], Float[Tensor, "_ H"]]:
        """The target's ids of the draft's tokens, and the output rows of those that the head has not."""
        history = self._history
        if self._lengths == history.lengths:
            return self._ids, self._rows
        known = [*self._lengths, *[0] * (history.num_rows - len(self._lengths))]
        self._lengths = [*history.lengths]
        fresh = torch.cat([history.row(b)[start:] for b, start in enumerate(known)])
        fresh = fresh[fresh < len(self._is_known)]
        # One token stays out: proposals take a vocabulary of all tokens to be in the target's order.
        fresh = fresh[~self._is_known[fresh]].unique()[: len(self._is_known) - 1 - len(self._ids)]
        if len(fresh):
            self._is_known[fresh] = True
            added = fresh.to(self._ids.device)
            self._ids = torch.cat([self._ids, added])
            rows = self._head.embedding[added].to(self._map) @ self._map
            self._rows = torch.cat([self._rows, rows])
        return self._ids, self._rows


def fit_output_map(head: DraftHead) -> Float[Tensor, "_ H"] | None:
    """The map from embeddings to output rows; None: the head has all tokens, or a map explains little of its rows.

    Least squares makes predicted rows too short by the share of the variance that it does not explain (adjusted for the
    number of rows), so they are divided by the other share.
    """
    rows, ids = head.lm_head.weight.detach().float(), head.target_ids
    embedded = head.embedding[ids].float()
    spare = len(ids) - embedded.shape[1] - 1
    if len(ids) == head.config.vocab_size or spare <= 0:
        return None
    found = torch.linalg.lstsq(embedded, rows).solution
    lost = (embedded @ found - rows).square().sum() / (rows - rows.mean(0)).square().sum()
    explained = 1 - float(lost) * (len(ids) - 1) / spare
    return (found / explained).to(head.lm_head.weight.dtype) if explained >= LEAST_EXPLAINED else None
