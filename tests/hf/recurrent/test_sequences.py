"""Random sequences of passes, commits and rows taken away, each node compared with a plain pass over its path."""

from __future__ import annotations

import random

import pytest
import torch
from helpers.rounds import uncached_logits
from helpers.zoo import VOCAB_SIZE, build

from treespec.hf.recurrent.scorer import StateScorer

TOLERANCE = 1e-3
KINDS = ("lfm2", "qwen3_5_text", "kimi_linear", "bamba", "mamba", "minimax", "recurrent_gemma", "rwkv")


class _Row:
    """A text, and the pending nodes behind it."""

    def __init__(self, text: list[int]) -> None:
        self.text, self.tokens, self.parents = text, [], []

    def path_to(self, node: int) -> list[int]:
        path: list[int] = []
        while node >= 0:
            path.insert(0, node)
            node = self.parents[node]
        return path

    def copy(self) -> _Row:
        made = _Row(list(self.text))
        made.tokens, made.parents = list(self.tokens), list(self.parents)
        return made

    def grow(self, choice: random.Random, num_new: int, may_begin: bool) -> None:
        """Nodes behind pending ones, rarely behind the text or none at all."""
        for _ in range(num_new):
            real = [node for node, parent in enumerate(self.parents) if parent != -2]
            is_root = not real or (may_begin and choice.random() < 0.3)
            parent = -2 if choice.random() < 0.1 else -1 if is_root else choice.choice(real)
            self.parents.append(parent)
            self.tokens.append(choice.randrange(3, VOCAB_SIZE))

    def commit(self, choice: random.Random) -> list[int]:
        real = [node for node, parent in enumerate(self.parents) if parent != -2]
        path = self.path_to(choice.choice(real)) if real and choice.random() < 0.8 else []
        self.text += [self.tokens[node] for node in path]
        self.tokens, self.parents = [], []
        return path


def _extend(model, scorer: StateScorer, rows: list[_Row], choice: random.Random, is_single: bool) -> None:
    num_new, may_begin = 1 if is_single else choice.randint(1, 3), choice.random() < 0.2
    for row in rows:
        row.grow(choice, num_new, may_begin)
    parts = [torch.tensor([getattr(row, name)[-num_new:] for row in rows]) for name in ("tokens", "parents")]
    logits = scorer.extend(*parts).logits
    for row, found in zip(rows, logits, strict=True):
        for number in range(num_new):
            node = len(row.parents) - num_new + number
            if row.parents[node] != -2:
                text = row.text + [row.tokens[above] for above in row.path_to(node)]
                assert (found[number] - uncached_logits(model, text)[-1]).abs().max() <= TOLERANCE


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", KINDS)
def test_random_sequences(name, seed):
    choice, model = random.Random(seed), build(name)
    lengths = [choice.choice([0, 1, 2, 9]) for _ in range(choice.randint(1, 3))]
    lengths = lengths if name != "rwkv" else [lengths[0]] * len(lengths)  # Its padding is text.
    rows = [_Row([choice.randrange(3, VOCAB_SIZE) for _ in range(length)]) for length in lengths]
    pads = [max(lengths) - length for length in lengths]
    mask = torch.arange(max(lengths)) >= torch.tensor(pads).unsqueeze(1)
    ids = torch.tensor([[0] * pad + row.text for pad, row in zip(pads, rows, strict=True)], dtype=torch.int64)
    scorer = StateScorer(model)
    scorer.prefill(ids, mask)
    for _ in range(6):
        for number in range(choice.randint(1, 3)):
            _extend(model, scorer, rows, choice, is_single=number == 0 and choice.random() < 0.6)
            if choice.random() < 0.2:
                kept = [choice.randrange(len(rows)) for _ in range(choice.randint(1, 3))]
                scorer.select_rows(kept)
                rows = [rows[row].copy() for row in kept]
        scorer.commit([row.commit(choice) for row in rows])
