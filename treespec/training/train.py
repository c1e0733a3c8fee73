"""Training a drafter for a model from texts that the model wrote."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from treespec.hf.introspect import input_device, num_logits, position_table_size
from treespec.training.data import FeatureSet, check_texts
from treespec.training.evaluate import Evaluation
from treespec.training.features import FeatureReader
from treespec.training.loop import Run
from treespec.training.objective import Objective
from treespec.training.options import KINDS, TrainingConfig
from treespec.training.report import machine, write_report
from treespec.training.state import Progress
from treespec.training.text.texts import Texts, join


@dataclass(frozen=True)
class TrainingResult:
    """The folder of the drafter's files, its last evaluation, and the run's steps, time, tokens and log."""

    folder: Path
    evaluation: Evaluation
    progress: Progress


def train(
    model: PreTrainedModel,
    texts: Texts,
    folder: str | Path,
    config: TrainingConfig | None = None,
    *,
    held_out: Texts | None = None,
    features: str | Path | None = None,
    name: str | None = None,
    command: str | None = None,
    dtype: torch.dtype = torch.float16,
    on_tokens: Callable[[int], object] = lambda _: None,
    on_step: Callable[[Run], object] = lambda _: None,
    on_evaluation: Callable[[Evaluation], object] = lambda _: None,
) -> TrainingResult:
    """Train a drafter, or resume an interrupted run: the same call gives the same drafter.

    Args:
        model: the target, in evaluation mode.
        texts: that it wrote, see `write_texts`.
        folder: for the run's state, its log, and the drafter (in `drafter/`).
        held_out: texts to evaluate on in place of `num_held_out` of `texts`.
        features: the folder of the target's features, which runs may share; default: `features/` in `folder`.
        name: of the target, for the drafter's files.
        command: what trains, for the drafter's files.
        dtype: of the weights in the drafter's files.
        on_tokens: called with numbers of tokens whose features have been read.
        on_step: called with the run after every step.
        on_evaluation: called with every evaluation.

    Raises:
        ConfigError: settings that do not fit the model, a model in training mode, too few texts, or another model's.
        UnsupportedModelError: drafters of this kind do not fit the model.
        CheckpointError: `folder` holds another run, `config.start` holds no such drafter, or a file is damaged.
        TreespecError: the loss is not finite; the state on disk is that of the last checkpoint before.
    """
    config, folder = config or TrainingConfig(), Path(folder)
    run = _start(model, texts, held_out, folder, config, Path(features or folder / "features"), on_tokens)
    origin = {"model": name, "command": command, "machine": machine(input_device(model))}
    about = origin | _about(run.objective, texts, config)

    def report(evaluation: Evaluation) -> None:
        run.objective.learner.save(folder / "drafter", name, dtype)
        write_report(folder, about, run.progress, evaluation)
        on_evaluation(evaluation)

    return TrainingResult(folder / "drafter", run.train(on_step, report), run.progress)


def _start(
    model: PreTrainedModel,
    texts: Texts,
    held_out: Texts | None,
    folder: Path,
    config: TrainingConfig,
    cache: Path,
    on_tokens: Callable[[int], object],
) -> Run:
    """The run at its beginning, or where it was interrupted; features are kept in the folder `cache`."""
    device = input_device(model)
    for given in (texts, held_out or texts):
        check_texts(given, num_logits(model))
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(config.seed)
        learner = KINDS[config.kind].make(model, texts, config)
    # A text that fills the model's positions is one token longer than what the model reads.
    max_length = min(config.max_length, position_table_size(model) or config.max_length)
    reader = FeatureReader(model, learner.reads.get("hidden_layers", ()), is_mixed=config.is_mixed)
    every = texts if held_out is None else join([held_out, texts])
    features = FeatureSet(every, reader, cache, max_length, config.max_cache_gb * 1e9, device, on_tokens)
    objective = Objective(learner, num_logits(model), config.depth_decay).to(device)
    return Run(objective, features, config, folder, None if held_out is None else len(held_out.lengths))


def _about(objective: Objective, texts: Texts, config: TrainingConfig) -> dict[str, Any]:
    """The facts of a drafter's training for its card, see `write_report`."""
    return {
        # A folder means nothing on another machine; its name may.
        "config": asdict(config) | {"start": config.start and Path(config.start).name},
        "num_tokens": len(texts.tokens),
        "num_texts": len(texts.lengths),
        "coverage": float(torch.isin(texts.tokens, objective.learner.target_ids.cpu()).float().mean()),
        "num_weights": sum(weight.numel() for weight in objective.parameters() if weight.requires_grad),
    }
