"""Training a drafter for a model from texts that the model wrote."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from treespec.hf.facts import input_device, num_logits
from treespec.hf.features import FeatureReader
from treespec.hf.head_shape import usual_layers
from treespec.hf.texts import Texts
from treespec.training.block import make_block
from treespec.training.data import FeatureSet
from treespec.training.eagle import make_eagle
from treespec.training.evaluate import Evaluation
from treespec.training.loop import Run
from treespec.training.objective import Learner, Objective
from treespec.training.options import TrainingConfig
from treespec.training.report import write_evaluation, write_log
from treespec.training.state import Progress
from treespec.training.vocabulary import choose_vocabulary, coverage, unused_token


@dataclass(frozen=True)
class TrainingResult:
    """What a run gave.

    Args:
        folder: the drafter's files.
        evaluation: on the held-out texts, at the end.
        progress: steps, time, tokens and the log.
        coverage: the share of the texts' tokens that the draft vocabulary has.
    """

    folder: Path
    evaluation: Evaluation
    progress: Progress
    coverage: float


def train(
    model: PreTrainedModel,
    texts: Texts,
    folder: str | Path,
    config: TrainingConfig | None = None,
    *,
    features: str | Path | None = None,
    name: str | None = None,
    command: str | None = None,
    on_tokens: Callable[[int], object] = lambda _: None,
    on_step: Callable[[Run], object] = lambda _: None,
    on_evaluation: Callable[[Evaluation], object] = lambda _: None,
) -> TrainingResult:
    """Train a drafter, or go on with an interrupted run: the same call gives the same drafter.

    Args:
        model: the target, in evaluation mode.
        texts: written by it, see `write_texts`.
        folder: where the run's state, its log and the drafter (in `drafter/`) go.
        config: the run's settings.
        features: where the target's features are kept; runs may share it. Default: `features/` in `folder`.
        name, command: the target's name and the command that runs this, for the drafter's files.
        on_tokens: called with numbers of tokens whose features have been read.
        on_step: called after every step.
        on_evaluation: called with every evaluation.

    Raises:
        ConfigError: settings that do not fit each other, too few texts.
        CheckpointError: `folder` holds another run, or a file is damaged.
    """
    config, folder = config or TrainingConfig(), Path(folder)
    layers = config.hidden_layers or usual_layers(model.config.get_text_config().num_hidden_layers)
    reader = FeatureReader(model, layers, config.num_candidates, is_mixed=config.is_mixed)
    device, cache = input_device(model), Path(features or folder / "features")
    read = FeatureSet(texts, reader, cache, config.max_length, config.max_cache_gb * 1e9, device, on_tokens)
    vocab_size = num_logits(model)
    target_ids = choose_vocabulary(texts.tokens, texts.top, vocab_size, config.draft_vocab_size)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(config.seed)
        learner = make_learner(model, texts, target_ids, layers, config)
    objective = Objective(learner, vocab_size, config.depth_decay).to(device)
    run = Run(objective, read, config, folder)

    def report(found: Evaluation) -> None:
        write_log(folder / "log.csv", run.progress.log)
        write_evaluation(folder / "evaluation.json", found, about | {"step": run.progress.step})
        on_evaluation(found)

    about = {"model": name, "command": command, "config": asdict(config), "num_tokens": len(texts.tokens)}
    about |= {"coverage": coverage(texts.tokens, target_ids)}
    folder.mkdir(parents=True, exist_ok=True)
    evaluation = run.train(on_step, report)
    learner.save(folder / "drafter", name)
    return TrainingResult(folder / "drafter", evaluation, run.progress, about["coverage"])


def make_learner(
    model: PreTrainedModel, texts: Texts, target_ids: Tensor, hidden_layers: Sequence[int], config: TrainingConfig
) -> Learner:
    """A fresh drafter of the kind that is asked for."""
    if config.kind == "block":
        mask_token = config.mask_token
        if mask_token is None:
            mask_token = unused_token(texts.tokens, num_logits(model))
        return make_block(model, target_ids, hidden_layers, mask_token, config)
    return make_eagle(model, target_ids, hidden_layers, config)
