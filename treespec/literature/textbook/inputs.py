"""Reading the inputs of the textbook functions: tensors, arrays or nested lists, checked."""

from collections.abc import Sequence
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Shaped
from torch import Tensor

from treespec.checks import check_distributions
from treespec.errors import ConfigError

Array = Tensor | np.ndarray | Sequence[Any]


class Chain(NamedTuple):
    """Checked inputs in one library: target [D or D + 1, V], draft [D, V], tokens of length D."""

    target: Any
    draft: Any
    tokens: list[int]

    @property
    def has_bonus_row(self) -> bool:
        return self.target.shape[0] > len(self.tokens)


def read_chain(
    target_probs: Array,
    draft_probs: Array,
    draft_tokens: Array,
    extra_rows: tuple[int, ...],
    vocab_size: int | None = None,
) -> Chain:
    """Check D draft tokens, their distributions and D + `extra_rows` target distributions.

    Distributions become torch's if any of them is, else numpy's in float64.
    Raises `ConfigError`: shapes that do not fit, rows that are not distributions, a draft token of draft probability
    zero, or a `vocab_size` that is not an integer.
    """
    if vocab_size is not None and (isinstance(vocab_size, bool) or not isinstance(vocab_size, Integral)):
        raise ConfigError(f"vocab_size must be an integer, got {vocab_size!r}")
    ids = to_numpy(draft_tokens, "draft_tokens")
    if ids.ndim != 1 or (ids.size and not np.issubdtype(ids.dtype, np.integer)):
        raise ConfigError(f"draft_tokens must be integers [D], got {ids.dtype} {list(ids.shape)}")
    use_torch = isinstance(target_probs, Tensor) or isinstance(draft_probs, Tensor)
    draft = _read_distributions(draft_probs, "draft_probs", use_torch)
    target = _read_distributions(target_probs, "target_probs", use_torch)
    tokens = ids.tolist()
    num_tokens = len(ids)
    vocab = target.shape[1] if vocab_size is None else vocab_size
    if draft.shape[0] != num_tokens or target.shape[0] - num_tokens not in extra_rows:
        rows = " or ".join(str(num_tokens + extra) for extra in extra_rows)
        raise ConfigError(
            f"{num_tokens} draft tokens need as many rows of draft_probs and {rows} of target_probs, "
            f"got {draft.shape[0]} and {target.shape[0]}"
        )
    if any(probs.shape[0] and probs.shape[1] != vocab for probs in (draft, target)):
        raise ConfigError(
            f"the vocabularies differ: draft_probs {draft.shape[1]}, target_probs {target.shape[1]}, expected {vocab}"
        )
    for i, token in enumerate(tokens):
        if not 0 <= token < vocab:
            raise ConfigError(f"draft_tokens[{i}] = {token} is outside the vocabulary of {vocab}")
        if not draft[i][token] > 0:
            raise ConfigError(
                f"draft_probs gives draft_tokens[{i}] = {token} probability zero: it cannot have been drawn from it. "
                "Pass the distribution after the draft's own temperature and truncation"
            )
    return Chain(target, draft, tokens)


def _read_distributions(probs: Array, name: str, use_torch: bool) -> Any:
    """[rows, V], in torch's float32 (or float64, if it came so) or in numpy's float64; an empty list has no rows."""
    try:
        rows = probs.detach() if isinstance(probs, Tensor) else torch.from_numpy(np.array(probs))
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{name} must be an array of numbers [rows, V]: {error}") from error
    if rows.ndim == 1 and len(rows) == 0:
        rows = rows.reshape(0, 1)
    if rows.ndim != 2:
        raise ConfigError(f"{name} must have shape [rows, V], got {list(rows.shape)}")
    if not rows.is_complex():
        rows = rows.to(torch.float64 if rows.dtype == torch.float64 or not use_torch else torch.float32)
    check_distributions(name, rows)
    return rows if use_torch else rows.numpy()


def read_vector(values: Array, name: str, length: int | None) -> list[float]:
    """Numbers in [0, 1], as many as `length` says; single precision is read by its shortest decimal, .3 as .3."""
    vector = to_numpy(values, name)
    if vector.ndim != 1 or (length is not None and len(vector) != length):
        expected = "[D]" if length is None else f"[{length}]"
        raise ConfigError(f"{name} must have shape {expected}, got {list(vector.shape)}")
    try:
        numbers = [float(str(value)) for value in vector]
    except ValueError as error:
        raise ConfigError(f"{name} must hold numbers: {error}") from error
    if not all(0 <= number <= 1 for number in numbers):
        raise ConfigError(f"{name} must lie in [0, 1], got {numbers}")
    return numbers


def to_numpy(values: Array, name: str) -> Shaped[np.ndarray, "..."]:
    """The values as they are, on the host; bfloat16, which numpy lacks, as float32."""
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        return (values.float() if values.dtype == torch.bfloat16 else values).numpy()
    try:
        return np.asarray(values)
    except ValueError as error:
        raise ConfigError(f"{name} must be a flat array: {error}") from error
