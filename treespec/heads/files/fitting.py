"""Heads that come with treespec, and which target a head fits."""

from collections.abc import Sequence
from pathlib import Path

import treespec.data
from treespec.errors import CheckpointError, ConfigError
from treespec.heads.modules.base import HeadConfig

DATA = Path(treespec.data.__file__).parent
HEAD_SUFFIX = "-head"
"""The heads that come with treespec are in folders named after their targets, with this suffix."""


def shipped_head(name: str) -> Path:
    """The folder of a head that comes with treespec, by its target's name without the owner; else `CheckpointError`.

    drafter = load_drafter(shipped_head("SmolLM2-135M-Instruct"), model)
    """
    heads = {path.name.removesuffix(HEAD_SUFFIX): path for path in DATA.glob(f"*{HEAD_SUFFIX}")}
    found = heads.get(name.rsplit("/", 1)[-1].lower())
    if found is None:
        raise CheckpointError(
            f"no head for {name!r} comes with treespec (there are {', '.join(sorted(heads)) or 'none'}): train one "
            f"with treespec train {name} --texts FOLDER --out FOLDER"
        )
    return found


def check_target(
    config: HeadConfig, name: str | Path, target: str, hidden_size: int, vocab_sizes: Sequence[int]
) -> None:
    """Raises `CheckpointError`: the head `name` is for another hidden size, or for none of these vocabularies."""
    for what, size, allowed in (
        ("hidden states of size", config.target_hidden_size, [hidden_size]),
        ("a vocabulary of size", config.vocab_size, vocab_sizes),
    ):
        if size not in allowed:
            found = f"{name} is for {what} {size}, {target} has {allowed[0]}"
            expanded = "vocabulary" in what and size > max(allowed)
            reason = ", or its vocabulary was expanded, which is not served" if expanded else ""
            raise CheckpointError(f"{found}: it is the head of another model{reason}")


def fused_layers(
    config: HeadConfig, name: str | Path, num_layers: int, given: Sequence[int] | None = None
) -> tuple[int, ...]:
    """The indices of `HiddenStates` that the head `name` fuses; the last one, which is normed, is EAGLE's alone.

    Args:
        num_layers: the target's.
        given: the caller's choice; None: those of the configuration, or EAGLE-3's own (2, L // 2, L - 3).

    Raises:
        ConfigError: `given` are not as many as the head fuses, or not the target's.
        CheckpointError: nor are the configuration's.
    """
    if given is None and config.reads_last_state:
        return (num_layers,)
    if given is None and config.hidden_layers is None and config.num_features == 3:
        layers = (2, num_layers // 2, num_layers - 3)
    else:
        layers = tuple(given if given is not None else config.hidden_layers or ())
    limit = num_layers if given is None else num_layers + 1
    if len(layers) != config.num_features or not all(-limit <= layer < limit for layer in layers):
        error = CheckpointError if given is None else ConfigError
        raise error(
            f"{name} fuses {config.num_features} hidden states of the target, got the indices {list(layers)} for a "
            f"model of {num_layers} layers: give hidden_layers=, or the head of this model"
        )
    if given is None and min(layers) < 0:
        raise CheckpointError(f"{name} fuses the hidden states {list(layers)} of a model of {num_layers} layers")
    return layers
