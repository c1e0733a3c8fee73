"""Progress bars of a training run."""

from __future__ import annotations

from rich.progress import Progress, TaskID

from treespec.training.evaluate import Evaluation
from treespec.training.loop import Run

NUM_MARKS = 1000


class Reporter:
    """The callbacks of `train`: tokens whose features are read, then the share of the run that is done."""

    def __init__(self, progress: Progress, num_tokens: int) -> None:
        self._progress = progress
        self._reading = progress.add_task("features read", total=num_tokens)
        self._training: TaskID | None = None

    def on_tokens(self, count: int) -> None:
        self._progress.advance(self._reading, count)

    def on_step(self, run: Run) -> None:
        if self._training is None:
            self._training = self._progress.add_task("training", total=NUM_MARKS)
        state = run.progress
        speed = state.num_tokens / max(state.seconds, 1e-9)
        loss = next((f", loss {line['loss']:.3f}" for line in reversed(state.log) if "loss" in line), "")
        text = f"step {state.step}, {speed:.0f} tokens/s{loss}"
        self._progress.update(self._training, completed=int(NUM_MARKS * run.share_done), description=text)

    def on_evaluation(self, evaluation: Evaluation) -> None:
        self._progress.console.print(", ".join(f"{k} {v:.3f}" for k, v in evaluation.summary().items()))
