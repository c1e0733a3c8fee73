"""Adjacency tables of `TokenRecycling`: counted from texts, and packed for files."""

import re
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from treespec.errors import CheckpointError, ConfigError

RANK_DECAY = 0.5
"""The weight of a candidate's count relative to the rank before: lower ranks are right about half as often."""
WARM_TRIALS = 1000.0
"""The weight of counts from texts, in trials of a call, so that calls soon outweigh them."""
MAX_ENTRIES = 1 << 28
"""The largest table that is read (2 GiB). Small files can ask for more: empty rows take no room in them."""
PACKED = ("known", "candidates", "hits")
"""The tensors of a packed table."""


class Table(NamedTuple):
    candidates: Tensor
    """int64 [V, k], -1 where there is none."""
    hits: Tensor
    """float32 [k + 1]: how often each rank held the target's most likely token, and the number of trials."""


def check_table(table: Table) -> None:
    """Raises `ConfigError`: not a `Table`, or its tensors do not fit together."""
    if not isinstance(table, Table) or not all(isinstance(tensor, Tensor) for tensor in table):
        raise ConfigError(f"table must be a Table of tensors, got {type(table).__name__}")
    candidates, hits = table
    is_fitting = candidates.ndim == 2 and candidates.dtype == torch.int64 and candidates.numel() > 0
    if not is_fitting or hits.shape != (candidates.shape[1] + 1,):
        got = f"{candidates.dtype} {list(candidates.shape)} and {list(hits.shape)}"
        raise ConfigError(f"a table has candidates int64 [V, k] and hits [k + 1], got {got}")
    if int(candidates.max()) >= len(candidates) or int(candidates.min()) < -1:
        raise ConfigError(f"a table's candidates are tokens of its {len(candidates)} rows, or -1")
    if not bool((hits.isfinite() & (hits >= 0) & (hits <= hits[-1])).all()):
        raise ConfigError("a table's hits must be counts, none above the number of trials, which is the last one")


def count_table(tokens: Tensor, top: Tensor, vocab_size: int) -> Table:
    """The candidates that were most likely on average after every token of a text, int64 [T].

    `top` int64 [T, k] holds the model's most likely next tokens at every position, best first; -1 where unknown.
    """
    is_known = top[:, 0] >= 0
    tokens, top = tokens[is_known], top[is_known]
    width = top.shape[1]
    weights = (RANK_DECAY ** torch.arange(width, device="cpu")).expand(top.shape).flatten().double()
    pairs, inverse = (tokens.unsqueeze(1) * vocab_size + top).flatten().unique(return_inverse=True)
    totals = torch.zeros(len(pairs), dtype=torch.float64, device="cpu").index_add(0, inverse, weights)
    order = totals.sort(descending=True, stable=True).indices
    order = order[(pairs[order] // vocab_size).sort(stable=True).indices]  # By token; totals stay sorted.
    owners = pairs[order] // vocab_size
    ranks = torch.arange(len(order), device="cpu") - torch.searchsorted(owners, owners)
    is_kept = ranks < width
    candidates = torch.full((vocab_size, width), -1, device="cpu")
    candidates[owners[is_kept], ranks[is_kept]] = (pairs[order] % vocab_size)[is_kept]
    hits = torch.cat([(candidates[tokens] == top[:, :1]).sum(0), torch.tensor([len(tokens)], device="cpu")]).float()
    return Table(candidates, hits * min(1.0, WARM_TRIALS / max(len(tokens), 1)))


def id_dtype(vocab_size: int) -> torch.dtype:
    """The smallest type for every id; its highest value marks an absent one."""
    return torch.uint16 if vocab_size < 1 << 16 else torch.int32


def pack_ids(ids: Tensor, vocab_size: int) -> Tensor:
    """Ids int64, -1 for absent ones, in the type of `id_dtype`."""
    dtype = id_dtype(vocab_size)
    return torch.where(ids < 0, torch.iinfo(dtype).max, ids).to(dtype).contiguous()


def unpack_ids(packed: Tensor, name: str, vocab_size: int, path: str | Path) -> Tensor:
    """The inverse of `pack_ids`. Raises `CheckpointError`: ids of another type or beyond the vocabulary."""
    dtype = id_dtype(vocab_size)
    if packed.dtype != dtype:
        raise CheckpointError(f"{path}: {name} must be {dtype} for {vocab_size} tokens, got {packed.dtype}")
    ids = packed.to(torch.int64)
    ids = torch.where(ids == torch.iinfo(dtype).max, -1, ids)
    if ids.numel() and int(ids.max()) >= vocab_size:
        raise CheckpointError(f"{path}: {name} holds id {int(ids.max())} in a vocabulary of {vocab_size} tokens")
    return ids


def pack_table(table: Table) -> dict[str, Tensor]:
    """The rows with candidates: `known` [M] tokens, their `candidates` [M, k], and `hits` float32 [k + 1]."""
    candidates = table.candidates.cpu()
    known = (candidates[:, 0] >= 0).nonzero().squeeze(1)
    return {
        "known": pack_ids(known, len(candidates)),
        "candidates": pack_ids(candidates[known], len(candidates)),
        "hits": table.hits.float().cpu().contiguous(),
    }


def unpack_table(tensors: dict[str, Tensor], metadata: dict[str, str], path: str | Path) -> Table:
    """The table that `pack_table` packed, for the vocabulary in the metadata. Raises `CheckpointError`: damaged."""
    found = metadata.get("vocab_size", "")
    if not re.fullmatch(r"[1-9][0-9]{0,9}", found):
        raise CheckpointError(f"{path}: the metadata must have a positive int vocab_size, got {found!r}")
    vocab_size = int(found)
    known, candidates = (unpack_ids(tensors[name], name, vocab_size, path) for name in ("known", "candidates"))
    is_fitting = candidates.ndim == 2 and known.shape == candidates.shape[:1] and 0 < candidates.shape[1] <= vocab_size
    if not is_fitting or len(known.unique()) != len(known) or bool((known < 0).any()):
        shapes = {name: list(tensors[name].shape) for name in PACKED}
        raise CheckpointError(
            f"{path}: different ids known [M], candidates [M, k], hits [k + 1] expected, got {shapes}"
        )
    if vocab_size * candidates.shape[1] > MAX_ENTRIES:
        raise CheckpointError(f"{path}: vocab_size is {vocab_size}, more than any model has: it is damaged")
    table = Table(torch.full((vocab_size, candidates.shape[1]), -1, device="cpu"), tensors["hits"])
    table.candidates[known] = candidates
    try:
        check_table(table)
    except ConfigError as error:
        raise CheckpointError(f"{path}: {error}") from error
    return table
