"""The texts to train on, small enough for a repository: about .8 bytes per token.

A file holds texts of up to `FILE_TOKENS` tokens, compressed: their tokens, lengths and kinds, and where in each the
target's own tokens begin. The distributions are not kept: training reads them again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np
import torch

from treespec.data.tensor_file import whole
from treespec.lab import smollm2
from treespec.training.text.texts import Texts

HERE = Path(__file__).parent
MODEL_NAME = f"HuggingFaceTB/{smollm2.NAME}"
FILE_TOKENS = 400_000
HELD_OUT_SHARE = 32
"""One text in so many is never trained on."""
LONGEST_PERIOD, REPEATED = 64, 48
"""A text ends where its last `REPEATED` tokens stood up to `LONGEST_PERIOD` tokens earlier, too: at temperature 0 the
target falls into loops, of which more teaches nothing."""


class Text(NamedTuple):
    """A text: at positions below `first` and in the template's later turns the next token is not the target's own."""

    kind: str
    tokens: np.ndarray  # uint16 [T]
    first: int  # The first position whose next token the target chose.
    greedy: int  # The first position from which every next token is the most probable one; T for none.

    @property
    def order(self) -> bytes:
        """A hash, by which training finds the held-out texts, too (`FeatureSet.split`)."""
        return hashlib.sha256(self.tokens.astype(np.int64).tobytes()).digest()

    @property
    def is_held_out(self) -> bool:
        return self.order[0] < 256 // HELD_OUT_SHARE


def loop_end(tokens: np.ndarray) -> int:
    """The length up to which a text is worth keeping: see `REPEATED`."""
    end = len(tokens)
    for period in range(1, min(LONGEST_PERIOD, len(tokens) - REPEATED) + 1):
        same = np.concatenate([[0], np.cumsum(tokens[period:] == tokens[:-period])])
        full = np.flatnonzero(same[REPEATED:] - same[:-REPEATED] == REPEATED)
        if len(full):
            end = min(end, int(full[0]) + period + REPEATED)
    return end


def join_texts(texts: Sequence[Text]) -> Texts:
    """As training reads them: `top` has one column, the next token where the target chose it as the most probable one.

    Elsewhere in the target's own part it is a neighbour of the next token, which stands for any other.
    """
    tops = []
    for text in texts:
        ids = text.tokens.astype(np.int64)
        top = np.append(ids[1:], 0)
        top[: text.greedy] ^= 1
        top[: text.first] = top[-1] = -1
        tops.append(torch.from_numpy(top))
    tokens = torch.from_numpy(np.concatenate([text.tokens.astype(np.int64) for text in texts]))
    return Texts(tokens, torch.tensor([len(text.tokens) for text in texts]), torch.cat(tops).unsqueeze(1))


def read_file(path: Path) -> list[Text]:
    with np.load(path) as file:
        kinds, tokens, lengths, firsts, greedy = (
            file[name] for name in ("kinds", "tokens", "lengths", "firsts", "greedy")
        )
    parts = np.split(tokens, np.cumsum(lengths.astype(np.int64))[:-1])
    return [Text(*each) for each in zip(kinds.tolist(), parts, firsts.tolist(), greedy.tolist(), strict=True)]


def read_corpus(folder: Path) -> list[Text]:
    """All texts, in the order in which they were written."""
    return [text for path in sorted(folder.glob("*.npz")) for text in read_file(path)]


def take(texts: Sequence[Text], num_tokens: float, rng: Random) -> list[Text]:
    """Some of the texts, at random, as soon as they have `num_tokens`; or all."""
    found = list[Text]()
    for text in rng.sample(texts, len(texts)):
        if num_tokens <= 0:
            break
        found.append(text)
        num_tokens -= len(text.tokens)
    return found


def append(folder: Path, texts: Sequence[Text]) -> None:
    """Add texts to the last file, or to a new one once that is full; a file is written whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = sorted(folder.glob("*.npz"))
    last = read_file(paths[-1]) if paths else []
    if sum(len(text.tokens) for text in last) >= FILE_TOKENS:
        last, paths = [], [*paths, folder / f"texts-{len(paths):03d}.npz"]
    path = paths[-1] if paths else folder / "texts-000.npz"
    _write(path, [*last, *texts])


def _write(path: Path, texts: Sequence[Text]) -> None:
    lengths, firsts, greedy = (
        np.array(values, np.uint16)
        for values in zip(*((len(text.tokens), text.first, text.greedy) for text in texts), strict=True)
    )
    kinds, tokens = np.array([text.kind for text in texts]), np.concatenate([text.tokens for text in texts])
    with whole(path) as scratch, scratch.open("wb") as file:
        np.savez_compressed(file, kinds=kinds, tokens=tokens, lengths=lengths, firsts=firsts, greedy=greedy)
