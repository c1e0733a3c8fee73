"""The training loop: AdamW, a cosine schedule by steps or by the clock, clipping, evaluations, resuming.

With a number of steps, a run that was killed anywhere and taken up again gives the same weights bit by bit on a CPU.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from treespec.errors import TreespecError
from treespec.training.cast import CastWeights
from treespec.training.data import Batch, FeatureSet
from treespec.training.evaluate import Evaluation, JudgedText, evaluate
from treespec.training.objective import Objective
from treespec.training.options import TrainingConfig
from treespec.training.sampler import Sampler, Split
from treespec.training.state import Progress, load_state, load_weights, save_state

STATE = "state.safetensors"
LOG_EVERY = 10
"""Steps whose losses are one line of the log."""

SEED_STRIDE = 1_000_003
"""Runs of neighbouring seeds share no step's draws: no run has so many steps."""


class Run:
    """One run of training.

    Args:
        objective: what is trained.
        features: of all texts.
        config: the run's settings.
        folder: where its state is kept. A run that it holds already is gone on with.

    Raises:
        CheckpointError: `folder` holds another run, or a damaged file; or see `load_weights`.
    """

    def __init__(self, objective: Objective, features: FeatureSet, config: TrainingConfig, folder: Path) -> None:
        self.objective, self._features, self._config = objective, features, config
        self._split = Split.of(features, config.num_held_out)
        lengths = [features.length(text) for text in self._split.train]
        self._sampler = Sampler(lengths, config.batch_size, config.seed)
        self._num_steps = config.num_steps or math.ceil(config.num_epochs * self._sampler.num_batches)
        self._optimizer = make_optimizer(objective, config)
        self._weights = CastWeights(objective, torch.bfloat16 if config.is_mixed else torch.float32)
        self._path, self._settings = folder / STATE, asdict(config) | {"features": features.digest()}
        self._settings["reads"] = reads = objective.learner.reads
        self.progress = Progress()
        if self._path.exists():
            defaults = json.loads(json.dumps(asdict(TrainingConfig()) | {"reads": reads}))
            self.progress = load_state(self._path, objective, self._optimizer, self._settings, defaults)
        elif config.start is not None:
            load_weights(Path(config.start) / STATE, objective, reads)
        self._start = time.perf_counter() - self.progress.seconds

    @property
    def share_done(self) -> float:
        """0 to 1, by the clock where the run has a number of minutes."""
        if self._config.minutes is not None:
            return min(self.progress.seconds / (60 * self._config.minutes), 1.0)
        return min(self.progress.step / self._num_steps, 1.0)

    def train(
        self,
        on_step: Callable[[Run], object] = lambda _: None,
        on_evaluation: Callable[[Evaluation], object] = lambda _: None,
    ) -> Evaluation:
        """Train to the end of the run; returns the last evaluation.

        Args:
            on_step: called after every step.
            on_evaluation: called with every evaluation.

        Raises:
            TreespecError: see `step`.
        """
        self._start = time.perf_counter() - self.progress.seconds
        while self.share_done < 1:
            self.step()
            if self.progress.step % self._config.eval_every == 0 and self.share_done < 1:
                on_evaluation(self.evaluate())
            if self.progress.step % self._config.save_every == 0:
                self.save()
            on_step(self)
        final = self.evaluate()
        on_evaluation(final)
        self.save()
        return final

    def step(self) -> None:
        """One optimiser step.

        Raises:
            TreespecError: the loss is no finite number.
        """
        progress, config = self.progress, self._config
        texts = [self._split.train[i] for i in self._sampler.batch(progress.step)]
        batch = self._features.batch(texts)
        generator = torch.Generator(batch.tokens.device).manual_seed(config.seed * SEED_STRIDE + progress.step)
        batch = with_noise(batch, config.noise, generator)
        rate = learning_rate(config, progress.step, self.share_done)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        tv_weight = config.tv_weight if self.share_done >= config.tv_start else 0.0
        loss = torch.func.functional_call(self.objective, self._weights.cast(), (batch, tv_weight, generator))
        value = float(loss.detach())
        if not math.isfinite(value):
            raise TreespecError(f"the loss of step {progress.step} is {value}: lower the learning rate, or start anew")
        self._optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.objective.parameters(), config.clip)
        self._optimizer.step()
        progress.step += 1
        progress.num_tokens += sum(map(self._features.length, texts))
        progress.seconds = time.perf_counter() - self._start
        progress.losses.append(value)
        if progress.step % LOG_EVERY == 0:
            mean = sum(progress.losses) / len(progress.losses)
            self._log({"loss": mean, "learning_rate": rate})
            progress.losses.clear()

    def evaluate(self) -> Evaluation:
        """Judge the held-out texts in float32, and log it once per step."""
        size, held_out = self._config.batch_size, self._split.held_out
        judged: list[JudgedText] = []
        for start in range(0, len(held_out), size):
            texts = held_out[start : start + size]
            batch = self._features.batch(texts)
            parts = (*self.objective.judge(batch), batch.is_best)
            for row, text in enumerate(texts):
                judged.append(JudgedText(*(part[row, : self._features.length(text)].cpu() for part in parts)))
        found = evaluate(judged)
        if not any(line["step"] == self.progress.step and "overlap" in line for line in self.progress.log):
            self._log(found.summary())
        return found

    def save(self) -> None:
        """Write the state."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        save_state(self._path, self.objective, self._optimizer, self.progress, self._settings)

    def _log(self, values: dict[str, float]) -> None:
        progress = self.progress
        line: dict[str, Any] = {"step": progress.step, "seconds": round(progress.seconds, 1)}
        progress.log.append(line | {"tokens": progress.num_tokens} | values)


def make_optimizer(objective: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
    """AdamW over what is trained; norms and biases do not decay."""
    weights = [weight for weight in objective.parameters() if weight.requires_grad]
    groups = [
        {"params": [w for w in weights if w.ndim > 1], "weight_decay": config.weight_decay},
        {"params": [w for w in weights if w.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=config.betas, fused=True)


def with_noise(batch: Batch, noise: float, generator: torch.Generator) -> Batch:
    """The batch with normal noise on its states, of `noise` times the root mean square of each."""
    if not noise:
        return batch
    size = batch.states.float().square().mean(-1, keepdim=True).sqrt()
    draws = torch.randn(batch.states.shape, generator=generator, device=batch.states.device)
    return batch._replace(states=batch.states + (noise * size * draws).to(batch.states.dtype))


def learning_rate(config: TrainingConfig, step: int, share_done: float) -> float:
    """Linear warm-up in steps, then a cosine to zero over the run."""
    warm = min((step + 1) / (config.warmup_steps + 1), 1.0)
    return config.learning_rate * warm * 0.5 * (1 + math.cos(math.pi * share_done))
