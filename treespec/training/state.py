"""A training run on disk, to go on from: weights, the optimiser's moments, the log. Written whole or not at all.

Nothing random is kept: every step's draws and every epoch's order come from the run's seed and their own number.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from treespec.data.tensor_file import read_tensors, tensor_names, write_tensors
from treespec.errors import CheckpointError

FORMAT = "treespec-training-1"
MOMENTS = ("exp_avg", "exp_avg_sq")

Run = Mapping[str, Any]


@dataclass
class Progress:
    """How far a run has come: optimiser steps, seconds in the loop, tokens trained on, what was logged.

    `losses` are those since the last line of the log.
    """

    step: int = 0
    seconds: float = 0.0
    num_tokens: int = 0
    losses: list[float] = field(default_factory=list)
    log: list[dict[str, Any]] = field(default_factory=list)


def save_state(path: Path, module: nn.Module, optimizer: torch.optim.Optimizer, progress: Progress, run: Run) -> None:
    """Write a run's state; `run` says by its settings which run it is.

    Raises:
        CheckpointError: it cannot be written.
    """
    tensors: dict[str, Tensor] = {}
    for name, weight in _trained(module).items():
        tensors[name] = weight.detach()
        for moment in MOMENTS:
            if moment in (known := optimizer.state.get(weight, {})):
                tensors[f"{moment}:{name}"] = known[moment]
    about = {"run": json.dumps(run), "progress": json.dumps(vars(progress))}
    write_tensors(path, FORMAT, {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, about)


def load_state(path: Path, module: nn.Module, optimizer: torch.optim.Optimizer, run: Run, defaults: Run) -> Progress:
    """Take up a run; settings that the file does not know, being older than they are, had their `defaults`.

    Raises:
        CheckpointError: the file is damaged, or is of a run with other settings, texts or model.
    """
    weights = _trained(module)
    names = [*weights, *(f"{moment}:{name}" for name in weights for moment in MOMENTS)]
    tensors, about = read_tensors(path, FORMAT, names)
    try:
        own, progress = json.loads(about["run"]), Progress(**json.loads(about["progress"]))
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path} does not say how far its run has come ({error!r}): it is damaged") from error
    if {**defaults, **own} != json.loads(json.dumps(run)):
        raise CheckpointError(
            f"{path} is of a run with other settings, texts or model: give another folder, or delete it to start anew"
        )
    with torch.no_grad():
        for name, weight in weights.items():
            weight.copy_(tensors[name])
            state = {moment: tensors[f"{moment}:{name}"].to(weight.device) for moment in MOMENTS}
            optimizer.state[weight] = state | {"step": torch.tensor(float(progress.step), device=weight.device)}
    return progress


def load_weights(path: Path, module: nn.Module, reads: Mapping[str, Any]) -> None:
    """Take another run's weights, and nothing else of it.

    Args:
        reads: see `Learner`; files that are older than this entry of their run are taken to say the same.

    Raises:
        CheckpointError: the file is damaged, or is of a drafter of another kind or size, or of one that reads something
            else.
    """
    weights = _trained(module)
    tensors, about = read_tensors(path, FORMAT, weights)
    # Weights that are left over would be lost without a word: a further layer, a bias.
    further = sorted(name for name in tensor_names(path) - set(weights) if ":" not in name)
    if further:
        raise CheckpointError(f"{path} is of a drafter that has more: {', '.join(further)}")
    try:
        own = json.loads(about["run"]).get("reads", reads)
    except (KeyError, AttributeError, ValueError) as error:
        raise CheckpointError(f"{path} does not say which run it is of ({error!r}): it is damaged") from error
    if own != (asked := json.loads(json.dumps(reads))):
        raise CheckpointError(f"{path} is of a drafter that reads {own}, where this one reads {asked}: set the same")
    other = sorted(name for name, weight in weights.items() if tensors[name].shape != weight.shape)
    if other:
        raise CheckpointError(f"{path} is of a drafter of other sizes: {', '.join(other)}")
    with torch.no_grad():
        for name, weight in weights.items():
            weight.copy_(tensors[name])


def _trained(module: nn.Module) -> dict[str, nn.Parameter]:
    return {name: weight for name, weight in module.named_parameters() if weight.requires_grad}
