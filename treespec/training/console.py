"""Progress bars of a training run."""

from functools import partial
from typing import Any

from rich.progress import Progress

from treespec.training.evaluate import Evaluation
from treespec.training.loop import Run

NUM_MARKS = 1000


def callbacks_of(progress: Progress, num_tokens: int) -> dict[str, Any]:
    """The callbacks of `train`: tokens whose features are read, then the share of the run that is done."""
    reading = progress.add_task("features read", total=num_tokens)
    training = progress.add_task("training", total=NUM_MARKS, visible=False)

    def on_step(run: Run) -> None:
        state = run.progress
        speed = state.num_tokens / max(state.seconds, 1e-9)
        loss = next((f", loss {line['loss']:.3f}" for line in reversed(state.log) if "loss" in line), "")
        text = f"step {state.step}, {speed:.0f} tokens/s{loss}"
        progress.update(training, completed=int(NUM_MARKS * run.share_done), description=text, visible=True)

    def on_evaluation(evaluation: Evaluation) -> None:
        progress.console.print(", ".join(f"{k} {v:.3f}" for k, v in evaluation.summary().items()))

    return {"on_tokens": partial(progress.advance, reading), "on_step": on_step, "on_evaluation": on_evaluation}
