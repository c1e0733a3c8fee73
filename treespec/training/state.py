"""The state of a training run on disk, from which it can be resumed: weights, the optimiser's moments, the log.

No state of random generators is kept: all random numbers follow from the run's seed and a step's or epoch's number.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from treespec.data.tensor_file import open_tensors, read_tensors, write_tensors
from treespec.errors import CheckpointError

STATE = "state.safetensors"
FORMAT = "treespec-training-1"
MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass
class Progress:
    """How far a run is: optimiser steps, seconds in the loop, tokens trained on, losses since the log's last line."""

    step: int = 0
    seconds: float = 0.0
    num_tokens: int = 0
    losses: list[float] = field(default_factory=list)
    log: list[dict[str, Any]] = field(default_factory=list)


def save_state(
    path: Path, module: nn.Module, optimizer: torch.optim.Optimizer, progress: Progress, run: Mapping[str, Any]
) -> None:
    """Write a run's state; `run` holds the settings that identify the run. A `CheckpointError` if that fails."""
    tensors: dict[str, Tensor] = {}
    for name, weight in _trained(module).items():
        tensors[name] = weight.detach()
        for moment in MOMENTS:
            if moment in (known := optimizer.state.get(weight, {})):
                tensors[f"{moment}:{name}"] = known[moment]
    metadata = {"run": json.dumps(run), "progress": json.dumps(vars(progress))}
    write_tensors(path, FORMAT, {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, metadata)


def load_state(path: Path, module: nn.Module, optimizer: torch.optim.Optimizer, run: Mapping[str, Any]) -> Progress:
    """Load a run's weights and moments; returns its progress. `CheckpointError` for a damaged file or another run."""
    weights = _trained(module)
    names = [*weights, *(f"{moment}:{name}" for name in weights for moment in MOMENTS)]
    tensors, metadata = read_tensors(path, FORMAT, names)
    if json.loads(metadata["run"]) != json.loads(json.dumps(run)):
        raise CheckpointError(
            f"{path} is of a run with other settings, texts or model: give another folder, or delete it to start again"
        )
    progress = Progress(**json.loads(metadata["progress"]))
    _copy(tensors, weights)
    for name, weight in weights.items():
        state = {moment: tensors[f"{moment}:{name}"].to(weight.device) for moment in MOMENTS}
        state["step"] = torch.tensor(progress.step, dtype=torch.float32, device=weight.device)
        optimizer.state[weight] = state
    return progress


def load_weights(path: Path, module: nn.Module, reads: Mapping[str, Any]) -> None:
    """Load another run's weights only. Raises `CheckpointError`: damaged, of another kind, size or `Learner.reads`."""
    weights = _trained(module)
    tensors, metadata = read_tensors(path, FORMAT, weights)
    with open_tensors(path) as file:  # A further layer or a bias would be dropped silently.
        further = sorted(name for name in set(file.keys()) - set(weights) if ":" not in name)
    if further:
        raise CheckpointError(f"{path} is of a drafter that has more: {', '.join(further)}")
    found = json.loads(metadata["run"])["reads"]
    expected = json.loads(json.dumps(reads))
    if found != expected:
        raise CheckpointError(f"{path} is of a drafter that reads {found}, where this one reads {expected}: set these")
    if other := sorted(name for name, weight in weights.items() if tensors[name].shape != weight.shape):
        raise CheckpointError(f"{path} is of a drafter of other sizes: {', '.join(other)}")
    _copy(tensors, weights)


@torch.no_grad()
def _copy(tensors: Mapping[str, Tensor], weights: Mapping[str, nn.Parameter]) -> None:
    for name, weight in weights.items():
        weight.copy_(tensors[name])


def _trained(module: nn.Module) -> dict[str, nn.Parameter]:
    return {name: weight for name, weight in module.named_parameters() if weight.requires_grad}
