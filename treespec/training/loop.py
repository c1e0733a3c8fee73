"""The training loop: AdamW, a cosine schedule by steps or by the clock, clipping, evaluations, checkpoints.

With a number of steps, a run that was killed at any step and resumed gives the same weights bit by bit on a CPU.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from treespec.errors import TreespecError
from treespec.training.data import Batch, FeatureSet, Sampler
from treespec.training.evaluate import EvaluatedDrafts, Evaluation, evaluate
from treespec.training.heads import files_of
from treespec.training.objective import Objective
from treespec.training.options import TrainingConfig
from treespec.training.state import STATE, Progress, load_state, load_weights, save_state

WEIGHT_DECAY = 0.01
BETAS = (0.9, 0.95)
MAX_GRADIENT_NORM = 1.0
LOG_EVERY = 10
"""Steps whose mean loss is one line of the log."""
SEED_STRIDE = 1_000_003
"""More than a run's steps, so that runs of neighbouring seeds share no step's seed."""


class Run:
    """One run of training, with its state in `folder`, from which it can be resumed. For errors see `train`.

    `num_held_out_first`: see `FeatureSet.split`.
    """

    def __init__(
        self,
        objective: Objective,
        features: FeatureSet,
        config: TrainingConfig,
        folder: Path,
        num_held_out_first: int | None = None,
    ) -> None:
        self.objective, self._features, self._config = objective, features, config
        self._texts, self._held_out = features.split(config.num_held_out, num_held_out_first)
        lengths = [features.lengths[text] for text in self._texts]
        self._sampler = Sampler(lengths, config.batch_size, config.seed)
        self._num_steps = config.num_steps or self._sampler.num_batches
        self._optimizer = make_optimizer(objective, config.learning_rate)
        self._cast = cast_weights(objective, torch.bfloat16 if config.is_mixed else torch.float32)
        self._path = folder / STATE
        self._settings = asdict(config) | {"features": features.digest(), "reads": objective.learner.reads}
        self.progress = Progress()
        if self._path.exists():
            self.progress = load_state(self._path, objective, self._optimizer, self._settings)
        elif config.start is not None and files_of(config) is None:
            load_weights(Path(config.start) / STATE, objective, objective.learner.reads)

    @property
    def share_done(self) -> float:
        """0 to 1, by the clock if the run has a number of minutes."""
        if self._config.minutes is not None:
            return min(self.progress.seconds / (60 * self._config.minutes), 1.0)
        return min(self.progress.step / self._num_steps, 1.0)

    def train(
        self,
        on_step: Callable[[Run], object] = lambda _: None,
        on_evaluation: Callable[[Evaluation], object] = lambda _: None,
    ) -> Evaluation:
        """Train to the end of the run; returns the last evaluation. See `treespec.training.train`.

        The weights that a run begins with are evaluated, too.
        """
        progress, config = self.progress, self._config
        if config.start is not None and progress.step == 0:
            on_evaluation(self.evaluate())
        start = time.perf_counter() - progress.seconds
        while self.share_done < 1:
            self.step()
            progress.seconds = time.perf_counter() - start
            if progress.step % LOG_EVERY == 0:
                rate = self._optimizer.param_groups[0]["lr"]
                self._log({"loss": sum(progress.losses) / len(progress.losses), "learning_rate": rate})
                progress.losses.clear()
            if progress.step % config.eval_every == 0 and self.share_done < 1:
                on_evaluation(self.evaluate())
            if progress.step % config.save_every == 0:
                self.save()
            on_step(self)
        on_evaluation(final := self.evaluate())
        self.save()
        return final

    def step(self) -> None:
        """One optimiser step; a `TreespecError` if the loss is not finite."""
        progress, config = self.progress, self._config
        texts = [self._texts[i] for i in self._sampler.batch(progress.step)]
        batch = self._features.batch(texts)
        generator = torch.Generator(batch.tokens.device).manual_seed(config.seed * SEED_STRIDE + progress.step)
        batch = with_noise(batch, config.noise, generator)
        rate = learning_rate(config, progress.step, self.share_done)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        tv_weight = config.tv_weight if self.share_done >= config.tv_start else 0.0
        loss = torch.func.functional_call(self.objective, self._cast(), (batch, tv_weight, generator))
        value = float(loss.detach())
        if not math.isfinite(value):
            raise TreespecError(f"the loss of step {progress.step} is {value}: lower the learning rate")
        self._optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.objective.parameters(), MAX_GRADIENT_NORM)
        self._optimizer.step()
        progress.step += 1
        progress.num_tokens += sum(self._features.lengths[text] for text in texts)
        progress.losses.append(value)

    def evaluate(self) -> Evaluation:
        """Evaluate the drafter on the held-out texts in float32, and log it once per step."""
        size, lengths = self._config.batch_size, self._features.lengths
        evaluated: list[EvaluatedDrafts] = []
        for start in range(0, len(self._held_out), size):
            texts = self._held_out[start : start + size]
            parts = self.objective.evaluate(self._features.batch(texts))
            for row, text in enumerate(texts):
                evaluated.append(EvaluatedDrafts(*(part[row, : lengths[text]].cpu() for part in parts)))
        found = evaluate(evaluated)
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


def make_optimizer(module: nn.Module, learning_rate: float) -> torch.optim.AdamW:
    """AdamW for the weights of a module that are trained; norms and biases are not decayed."""
    trained = [weight for weight in module.parameters() if weight.requires_grad]
    decays = {WEIGHT_DECAY: [w for w in trained if w.ndim > 1], 0.0: [w for w in trained if w.ndim <= 1]}
    groups = [{"params": weights, "weight_decay": decay} for decay, weights in decays.items()]
    return torch.optim.AdamW(groups, lr=learning_rate, betas=BETAS, fused=True)


def cast_weights(module: nn.Module, dtype: torch.dtype) -> Callable[[], dict[str, Tensor]]:
    """A function that gives a module's weights in `dtype`, for `torch.func.functional_call`; gradients flow to its own.

    Unlike autocast it rounds no activation twice and keeps norms in fused kernels.
    """
    tensors = dict([*module.named_parameters(), *module.named_buffers()])
    # Rotary frequencies would be wrong by whole positions in bfloat16.
    names = [n for n, t in tensors.items() if t.is_floating_point() and not n.endswith("inv_freq")]
    trained = [n for n in names if tensors[n].requires_grad]
    frozen = {n: tensors[n].detach().to(dtype) for n in names if not tensors[n].requires_grad}
    return lambda: frozen | {n: module.get_parameter(n).to(dtype) for n in trained}


def with_noise(batch: Batch, noise: float, generator: torch.Generator) -> Batch:
    """The batch with normal noise on its states, of `noise` times the root mean square of each."""
    if not noise:
        return batch
    size = batch.states.float().square().mean(-1, keepdim=True).sqrt()
    draws = torch.randn(batch.states.shape, generator=generator, dtype=torch.float32, device=batch.states.device)
    return batch._replace(states=batch.states + (noise * size * draws).to(batch.states.dtype))


def learning_rate(config: TrainingConfig, step: int, share_done: float) -> float:
    """Linear warm-up in steps, then a cosine to zero over the run."""
    warm = min((step + 1) / (config.warmup_steps + 1), 1.0)
    return config.learning_rate * warm * 0.5 * (1 + math.cos(math.pi * share_done))
