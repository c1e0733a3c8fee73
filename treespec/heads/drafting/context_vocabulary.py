"""The draft vocabulary of a call: a head's own tokens, and those of the texts so far that it lacks.

A head with an output row for each of the most frequent tokens alone never drafts the others: names, and the rare words
of a subject, most of which are in the text already when they are due. Their output rows are made from their embeddings,
by the linear map from embeddings to output rows that explains the head's own rows best.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from treespec.heads.modules.base import DraftHead
from treespec.protocols import History
from treespec.tree.transfer import upload

LEAST_EXPLAINED = 0.5
"""The share of the rows' variance that the map explains, from which on it is used."""
MOST_FITTED = 8
"""Rows per column of the embedding to which the map is fitted at most: more take longer and change it little."""


class Vocabulary(NamedTuple):
    """The target's ids of the tokens to draft from: the head's W, then n more with these output rows.

    `is_absent` is True where a token is not in a row's own text, None for a single row.
    """

    ids: Int[Tensor, "_"]
    rows: Float[Tensor, "_ H"] | None = None
    is_absent: Bool[Tensor, "B 1 _"] | None = None


class ContextVocabulary:
    """The tokens that drafts are chosen from, each row's from its own text.

    Which tokens there are depends on the committed text alone, and drafts are drawn from what is stored with them: the
    output's distribution is the target's, as with any vocabulary.
    """

    def __init__(self, head: DraftHead) -> None:
        self._head = head
        self._fit()

    def _fit(self) -> None:
        self._weight = self._head.lm_head.weight.data
        self._map = fit_output_map(self._head)
        self._own = set() if self._map is None else set(self._head.target_ids.tolist())

    def start(self, history: History) -> None:
        """Begin a call, whose texts are `history`."""
        weight = self._head.lm_head.weight
        if (weight.data_ptr(), weight.dtype) != (self._weight.data_ptr(), self._weight.dtype):  # The head was moved.
            self._fit()
        self._history = history
        self.forget()

    def forget(self) -> None:
        """Read the texts again: rows have left, or are in another order."""
        self._lengths, self._columns, self._found = list[int](), dict[int, int](), set[tuple[int, int]]()
        self._vocabulary = Vocabulary(self._head.target_ids)

    def read(self) -> Vocabulary:
        """The vocabulary after the texts so far."""
        if self._map is None or self._lengths == self._history.lengths:
            return self._vocabulary
        known = len(self._lengths), len(self._found)
        self._read_texts()
        if self._found and (len(self._lengths), len(self._found)) != known:
            self._vocabulary = self._extended(self._map)
        return self._vocabulary

    def _extended(self, output_map: Float[Tensor, "_ H"]) -> Vocabulary:
        """The vocabulary with all columns; the rows that it has already stay."""
        ids, known, _ = self._vocabulary
        known = output_map.new_zeros(0, output_map.shape[1]) if known is None else known
        fresh = torch.tensor([*self._columns][len(known) :], dtype=torch.int64, device="cpu")
        is_absent = torch.ones(self._history.num_rows, 1, len(self._columns), dtype=torch.bool, device="cpu")
        row, column = torch.tensor([*self._found], device="cpu").T
        is_absent[row, 0, column] = False
        added, is_absent = upload(ids.device, fresh, is_absent)
        rows = torch.cat([known, self._head.embedding[added].to(output_map) @ output_map])
        return Vocabulary(torch.cat([ids, added]), rows, is_absent if len(is_absent) > 1 else None)

    def _read_texts(self) -> None:
        history, size = self._history, self._head.config.vocab_size
        known = [*self._lengths, *history.num_padding[len(self._lengths) :]]
        self._lengths = [*history.lengths]
        # One token stays out: proposals take a vocabulary of all tokens to be in the target's order.
        room = size - 1 - len(self._own)
        for row, start in enumerate(known):
            for token in history.row(row)[start:].tolist():
                is_lacking = token < size and token not in self._own
                if is_lacking and (token in self._columns or len(self._columns) < room):
                    self._found.add((row, self._columns.setdefault(token, len(self._columns))))


def fit_output_map(head: DraftHead) -> Float[Tensor, "_ H"] | None:
    """The map from embeddings to output rows by least squares; None: the head has all tokens, too few or NaN, or a map
    explains little of its rows.

    Predicted rows are too short along the true ones, and so the logits of tokens that are due too low, by the share of
    the variance that is not explained (adjusted for the number of rows): they are divided by the other share.
    """
    ids, weight = head.target_ids, head.lm_head.weight.detach()
    step = max(len(ids) // (MOST_FITTED * head.embedding.shape[1]), 1)
    embedded, rows = head.embedding[ids[::step]].float(), weight[::step].float()
    spare = len(rows) - embedded.shape[1] - 1
    if len(ids) == head.config.vocab_size or spare <= 0 or weight.is_meta:
        return None
    try:
        found = torch.linalg.solve(embedded.T @ embedded, embedded.T @ rows)
    except RuntimeError:  # A singular system, or a backend without the operator.
        return None
    lost = (embedded @ found - rows).square().sum() / (rows - rows.mean(0)).square().sum()
    explained = 1 - float(lost) * (len(rows) - 1) / spare  # NaN where weights are.
    return (found / explained).to(weight.dtype) if explained >= LEAST_EXPLAINED else None
