"""EAGLE-3 heads in vLLM: features are in pages next to vLLM's cache, the head's keys in one batched cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from huggingface_hub import snapshot_download
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from treespec.errors import CheckpointError, ConfigError
from treespec.heads.drafting.unread_features import MAX_COLUMNS, Pairs, UnreadFeatures
from treespec.heads.eagle3.drafter import Eagle3
from treespec.heads.eagle3.module import Eagle3Head
from treespec.heads.files.build import build_head
from treespec.heads.files.checkpoint import read_checkpoint
from treespec.heads.files.fitting import check_target, fused_layers, shipped_head
from treespec.protocols import Session, VerifiedStep
from treespec.tree import pad_rows
from treespec.vllm.head_products import pack_products

MOST_READ = 2048
"""The most tokens before the end that the head reads of a request that joins with a longer text."""
MOST_WAITING = 512
"""Tokens whose hidden states wait before they are fused."""
SHORT = 32
"""A request with more unread tokens is read in passes of its own, as the others would be padded to its length."""


class FeaturePages:
    """The head's features of every position in vLLM's cache, by the cache's own slots.

    Every pass leaves its hidden states, which become features when a head reads or when `MOST_WAITING` tokens wait: one
    product over many tokens costs less. So they are there for prompts read in chunks, for blocks of the prefix cache,
    and for requests that come back after a preemption.

    Attributes:
        tables: int64 [B, columns], the block tables of the drafter's rows.
    """

    def __init__(self, num_blocks: int, block_size: int, head: Eagle3Head) -> None:
        weight = head.fc.weight
        self._features = weight.new_zeros(num_blocks * block_size, weight.shape[0])
        self._block_size, self._head = block_size, head
        self.tables = np.zeros((0, 1), dtype=np.int64)
        self._waiting: list[tuple[Float[Tensor, "M Y"], np.ndarray]] = []

    def write(self, states: Float[Tensor, "M Y"], tables: np.ndarray, positions: np.ndarray) -> None:
        """Keep what the head reads of M tokens, each with its request's block table, int64 [M, columns]."""
        self._waiting.append((states, self._slots(tables, positions)))
        if sum(len(slots) for _, slots in self._waiting) >= MOST_WAITING:
            self._fuse()

    def _fuse(self) -> None:
        states, slots = zip(*self._waiting, strict=True)
        self._waiting = []
        with torch.no_grad():
            features = self._head.fuse(torch.cat(states).to(self._features))
        # A slot may have been written twice, by a request that has left: the last one counts.
        _, last = np.unique(np.concatenate(slots)[::-1], return_index=True)
        last = len(features) - 1 - last
        self._features[self._as_tensor(np.concatenate(slots)[last])] = features[self._as_tensor(last)]

    def read(self, rows: Sequence[int], firsts: Sequence[int], ends: Sequence[int]) -> list[Float[Tensor, "M H"]]:
        """Each of these rows' features of all positions from `firsts` up to before `ends`."""
        if self._waiting:
            self._fuse()
        counts = [end - first for first, end in zip(firsts, ends, strict=True)]
        positions = np.concatenate([np.arange(*bounds) for bounds in zip(firsts, ends, strict=True)])
        slots = self._slots(self.tables[np.repeat(rows, counts)], positions)
        return list(self._features[self._as_tensor(slots)].split(counts))

    def _slots(self, tables: np.ndarray, positions: np.ndarray) -> np.ndarray:
        blocks = tables[np.arange(len(positions)), positions // self._block_size].astype(np.int64)
        return blocks * self._block_size + positions % self._block_size

    def _as_tensor(self, numbers: np.ndarray) -> Int[Tensor, "M"]:
        return torch.from_numpy(numbers).to(self._features.device, non_blocking=True)


class PagedFeatures(UnreadFeatures):
    """Which positions a head has not read yet, of rows that join and leave; see `UnreadFeatures`."""

    def __init__(self, session: Session, pages: FeaturePages) -> None:
        super().__init__(session, ())
        self._pages = pages
        self._next: list[int] = []
        """The first unread position of every row."""

    @property
    def counts(self) -> list[int]:
        """Unread pairs of every row; the last token has no feature yet."""
        lengths = self._session.history.lengths
        return [length - 1 - first for length, first in zip(lengths, self._next, strict=True)]

    @property
    def reaches_roots(self) -> bool:
        return min(self.counts, default=0) > 0

    def add(self, step: VerifiedStep) -> None:
        """The pages have the features already."""

    def take(self) -> list[Pairs]:
        return self._take(list(range(len(self._next))), [length - 1 for length in self._session.history.lengths])

    def take_row(self, row: int) -> list[Pairs]:
        """One row's pairs but the last, as a batch of one."""
        return self._take([row], [self._session.history.lengths[row] - 2])

    def select_rows(self, rows: Sequence[int]) -> None:
        self._next = [self._next[row] for row in rows]
        self.offsets = [self.offsets[row] for row in rows]

    def add_rows(self, num_rows: int) -> None:
        """The history's last rows are new."""
        lengths = self._session.history.lengths[len(self._next) :]
        firsts = [max(length - 1 - MOST_READ, 0) for length in lengths]
        self._next += firsts
        self.offsets += firsts

    def _take(self, rows: Sequence[int], ends: Sequence[int]) -> list[Pairs]:
        firsts = [self._next[row] for row in rows]
        states = pad_sequence(self._pages.read(rows, firsts, ends), batch_first=True)
        texts = [self._session.history.row(row) for row in rows]
        tokens = [text[a + 1 : b + 1].tolist() for text, a, b in zip(texts, firsts, ends, strict=True)]
        padded = torch.tensor(pad_rows(tokens, 0), device="cpu")
        for row, end in zip(rows, ends, strict=True):
            self._next[row] = end
        parts = []
        for start in range(0, padded.shape[1], MAX_COLUMNS):
            columns = slice(start, start + MAX_COLUMNS)
            counts = [min(max(len(row) - start, 0), MAX_COLUMNS) for row in tokens]
            parts.append(Pairs(states[:, columns], padded[:, columns], counts))
        return parts


class ServedHead(Eagle3):
    """`Eagle3` for rows that join and leave, on features that are fused already.

    Attributes:
        pages: where the features are; set before `start`.
    """

    pages: FeaturePages
    _unread: PagedFeatures  # pyright: ignore[reportIncompatibleVariableOverride]

    def start(self, session: Session) -> None:
        super().start(session)
        self._unread = PagedFeatures(session, self.pages)

    def add_rows(self, num_rows: int) -> None:
        """See `ServingDrafter`."""
        self._keys.add_rows(num_rows)
        self._unread.add_rows(num_rows)

    def keep(self, states: Sequence[Tensor], columns: np.ndarray, tables: np.ndarray, positions: np.ndarray) -> None:
        """Keep what the head reads of these columns of a pass, whose hidden states are in vLLM's order of layers."""
        index, layers = torch.from_numpy(columns).to(states[0].device), sorted(set(self.hidden_layers))
        chosen = torch.cat([states[layers.index(layer)][index] for layer in self.hidden_layers], -1)
        self.pages.write(chosen, tables, positions)

    @property
    def unread(self) -> list[int]:
        """Tokens of every row that the next draft reads first."""
        return self._unread.counts

    def unread_of(self, length: int) -> int:
        """The same of a text of this length that joins."""
        return min(length - 1, MOST_READ)

    def _catch_up(self) -> Float[Tensor, "B 1 H"]:
        counts = self._unread.counts
        if len(counts) > 1:
            for row in np.flatnonzero(np.array(counts) > SHORT).tolist():
                keys = self._keys.copy_row(row)
                for pairs in self._unread.take_row(row):
                    self._read_committed(pairs, keys, [self._unread.offsets[row]])
                self._keys.replace_row(row, keys)
        return super()._catch_up()

    def _fuse(self, states: Float[Tensor, "B M H"]) -> Float[Tensor, "B M H"]:
        return states


def load_served_head(
    name: str, model: Any, target: str, gather: Callable[[Tensor, int], Tensor] = lambda part, dim: part
) -> ServedHead:
    """The head of a name, see `find_folder`, for vLLM's model `target`; without its pages.

    `gather` joins the parts that the ranks have of a weight along a dimension; all ranks call this.

    Raises:
        CheckpointError: nothing there, it cannot be read, or it is the head of another model.
        ConfigError: a head of another kind than EAGLE-3, or a model that does not return hidden states.
    """
    if not hasattr(model, "set_aux_hidden_state_layers"):
        raise ConfigError(f"vLLM's {type(model).__name__} does not return hidden states, which a head reads")
    language = model.get_language_model() if hasattr(model, "get_language_model") else model
    layers = language.model
    modules = layers.embed_tokens, getattr(language, "lm_head", layers.embed_tokens)
    embedding, lm_head = (_weight(module, gather) for module in modules)
    head = build_head(read_checkpoint(find_folder(name)), embedding, lm_head, embedding.dtype, embedding.device)
    check_target(head.config, name, target, embedding.shape[1], [len(embedding)])
    if type(head) is not Eagle3Head:
        raise ConfigError(f"{name} is a {type(head).__name__}: EAGLE-3 heads are served in vLLM")
    pack_products(head)
    return ServedHead(head, fused_layers(head.config, name, len(layers.layers)))


def find_folder(name: str) -> Path:
    """A folder, or that of a head that ships with treespec, or of a repository of the hub, which vLLM's users name.

    Raises `CheckpointError`: there is none.
    """
    if Path(name).is_dir():
        return Path(name)
    try:
        return shipped_head(name)
    except CheckpointError as missing:
        if "/" not in name:
            raise
        try:
            return Path(snapshot_download(name, allow_patterns=["config.json", "*.safetensors"]))
        except (OSError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise CheckpointError(f"{missing}; nor can it be fetched from the hub ({reason})") from error


def _weight(module: Any, gather: Callable[[Tensor, int], Tensor]) -> Float[Tensor, "V H"]:
    """Without the rows that vLLM pads the vocabulary with; of a LoRA layer the layer below it."""
    module = getattr(module, "base_layer", module)
    return gather(module.weight.detach(), 0)[: module.org_vocab_size]
