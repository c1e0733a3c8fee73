"""The target writes texts of all kinds by turns, one batch after the other, into a `corpus`."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

from recipes.smollm2_head.corpus import Text, append, is_looping, read_corpus, split_texts
from recipes.smollm2_head.messages import FIRST_KINDS, LATER_KINDS, Messages
from treespec.cpu import prepack_linears
from treespec.hf.models.make_scorer import make_scorer
from treespec.training.text.batch import Writing, write_batch

MAX_MESSAGE = 160
"""Tokens of a message that the target finishes."""


class Writer:
    """Writes batches, the kind with the fewest texts first; the same corpus gives the same next batch.

    Args:
        folder: of the corpus.
        batch_size: texts of a batch.
        length: the longest text in tokens; half as much again where it holds earlier ones.
    """

    def __init__(self, model: Any, tokenizer: Any, folder: Path, batch_size: int = 64, length: int = 512) -> None:
        self._model = model
        self._scorer = make_scorer(model)
        self._messages = Messages(model, tokenizer, room=length * 3 // 4)
        self._folder = folder
        self._texts = read_corpus(folder)
        self._size = batch_size
        self._short = Writing(batch_size=batch_size, max_message=MAX_MESSAGE, max_length=length, num_candidates=1)
        longer = length + length // 2
        self._long = Writing(batch_size=batch_size, max_message=longer, max_length=longer, num_candidates=1)

    def write(self) -> list[Text]:
        """Write one batch and add it to the corpus."""
        number, known = len(self._texts), self._messages
        kinds = (*FIRST_KINDS, *LATER_KINDS)
        kind = min(kinds, key=lambda each: sum(text.kind == each for text in self._texts))
        messages = known.make(kind, self._size, Random(f"{kind} {number}"), self._texts)
        writing = self._long if kind in LATER_KINDS else self._short
        with prepack_linears(self._model, self._size):
            texts = write_batch(self._scorer, known.turns, known.ends, messages, writing, number, is_enough=is_looping)
        found = split_texts(texts, kind)
        append(self._folder, found)
        self._texts += found
        return found
