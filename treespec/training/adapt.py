"""Adapting a trained head, or an MTP layer, to one's own prompts: training on the target's answers to them."""

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from treespec.checks import check_count
from treespec.data.tensor_file import whole
from treespec.errors import CheckpointError, ConfigError, UnsupportedModelError
from treespec.hf.loading.formats import find_folder
from treespec.hf.loading.heads import load_drafter
from treespec.lab.tables import markdown_table
from treespec.speedup.sources import Found, take_trained
from treespec.training.evaluate import Evaluation
from treespec.training.loop import Run
from treespec.training.options import KINDS, TrainingConfig
from treespec.training.text.batch import Writing
from treespec.training.text.chat import chat_turns
from treespec.training.text.texts import Texts
from treespec.training.text.writing import write_texts
from treespec.training.train import train

LEAST_PROMPTS = 20
"""Fewer different prompts say too little of one's traffic."""
HELD_OUT_SHARE, MOST_HELD_OUT, BATCH = 5, 32, 64
LEAST_ANSWER = 32
"""Tokens of an answer for which every prompt must leave room."""
SETTINGS: dict[str, Any] = {
    "learning_rate": 5e-4,
    "batch_size": 4,
    "tv_weight": 0.7,
    "tv_start": 0.5,
    "eval_every": 100,
    "save_every": 50,
}
"""Those of the rounds by which the shipped head was trained further; an evaluation may find the best drafter early."""
RESULT = "adapted.json"


@dataclass(frozen=True)
class Adapted:
    """The folder of the drafter to use, and how good it is on held-out prompts; see `Evaluation.summary`.

    `is_better`: it is the adapted one; else the original, as no step of training was better.
    """

    folder: Path
    before: dict[str, float]
    after: dict[str, float]

    @property
    def is_better(self) -> bool:
        return _score(self.after) > _score(self.before)

    def __str__(self) -> str:
        rows = [
            [name, f"{old:.3f}", f"{self.after[name]:.3f}", f"{self.after[name] / old - 1:+.1%}" if old else ""]
            for name, old in self.before.items()
        ]
        table = markdown_table(["on held-out prompts", "before", "after", "gain"], rows)
        if self.is_better:
            return table
        return f"{table}\nTraining made nothing better: the drafter is the one that was given."


def adapt(
    model: PreTrainedModel,
    tokenizer: Any,
    prompts: Sequence[str],
    folder: str | Path,
    *,
    head: str | Path | None = None,
    config: TrainingConfig | None = None,
    answers: int = 3,
    max_length: int = 512,
    name: str | None = None,
    command: str | None = None,
    on_written: Callable[[int], object] = lambda _: None,
    on_tokens: Callable[[int], object] = lambda _: None,
    on_step: Callable[[Run], object] = lambda _: None,
    on_evaluation: Callable[[Evaluation], object] = lambda _: None,
) -> Adapted:
    """Adapt a drafter to prompts, or go on with an interrupted call: the same arguments, the same folder.

    The target answers the prompts in large batches, at temperatures 0, 0.7 and 1 by turns. One prompt in five, at most
    32, is held out, with answers at 0 and 1; of all evaluations `folder/drafter` is the one that is best there.
    For `name`, `command` and the other functions see `train`.

    Args:
        model: the target, in evaluation mode.
        prompts: users' messages; those that are given twice count once.
        folder: of the answers, the state, the drafter and the result.
        head: an EAGLE-3 head's folder or hub name, a trained MTP layer's folder, or "mtp" for the target's own layer;
            None: the one that `speed_up` finds without a download.
        config: of the training; its kind, sizes and `start` are replaced by the head's. Default: ten minutes.
        answers: to every prompt, each together with it of at most `max_length` tokens.
        on_written: called with numbers of tokens that the target wrote.

    Raises:
        ConfigError: fewer than twenty different prompts, one without room for 32 tokens more; others as in `train`.
        CheckpointError: no such head, one of another model, or `folder` holds something else.
        UnsupportedModelError: a drafter of another kind, or MTP layers that are not trained.
    """
    folder = Path(folder)
    check_count("answers", answers)
    own = replace(_config(model, head, config or adaptation()), max_length=max_length)
    held_out, others = split_prompts(prompts)
    _check_room(tokenizer, prompts, max_length)
    write = partial(_answer, model, tokenizer, max_length=max_length, on_tokens=on_written)
    known = write(held_out, 2, folder / "held-out", temperatures=(0.0, 1.0))
    texts = write(others, answers, folder / "texts", temperatures=Writing.temperatures)
    best = _Best(folder, on_evaluation)
    more: dict[str, Any] = {"name": name, "command": command, "on_tokens": on_tokens, "on_step": on_step}
    train(model, texts, folder / "run", own, held_out=known, on_evaluation=best.see, **more)
    return best.result


def adaptation(**settings: Any) -> TrainingConfig:
    """The settings of `adapt`, or ten minutes; see `TrainingConfig`."""
    length: dict[str, Any] = {} if settings.keys() & {"minutes", "num_steps"} else {"minutes": 10.0}
    return TrainingConfig(**SETTINGS | length | settings)


def _answer(
    model: PreTrainedModel,
    tokenizer: Any,
    prompts: Sequence[str],
    count: int,
    folder: Path,
    *,
    temperatures: tuple[float, ...],
    max_length: int,
    on_tokens: Callable[[int], object],
) -> Texts:
    """`count` answers to every prompt, at the temperatures by turns."""
    size = BATCH // len(temperatures) * len(temperatures)  # Every batch begins with the first temperature.
    writing = Writing(temperatures=temperatures, max_length=max_length, batch_size=size)
    repeated = [prompt for prompt in prompts for _ in range(count)]
    return write_texts(model, tokenizer, None, folder, prompts=repeated, writing=writing, on_tokens=on_tokens)


def _config(model: PreTrainedModel, head: str | Path | None, config: TrainingConfig) -> TrainingConfig:
    """The settings, with the kind, the sizes and the files of the head."""
    given: tuple[str | Path, Any] = _found(model) if head is None else (head, load_drafter(head, model))
    head, drafter = given
    # Not by `isinstance`: P-EAGLE drafts as EAGLE-3 does, and is trained otherwise.
    name = next((name for name, kind in KINDS.items() if kind.drafter is type(drafter)), None)
    if name is None:
        known = " and ".join(f"{kind.name}s" for kind in KINDS.values() if kind.drafter is not None)
        raise UnsupportedModelError(f"{known} are adapted, {head} is a {type(drafter).__name__}")
    start = str(head if head == KINDS[name].own else find_folder(head))
    sizes = {"num_layers": drafter.head.config.num_layers, "hidden_layers": tuple(drafter.hidden_layers)}
    sizes |= dict.fromkeys(sizes.keys() & KINDS[name].unused)
    return replace(config, kind=name, draft_vocab_size=len(drafter.head.target_ids), start=start, **sizes)


def _found(model: PreTrainedModel) -> tuple[str | Path, Any]:
    """The trained drafter that `speed_up` finds."""
    found = Found()
    source = take_trained(found, model, False, load_drafter)
    if source is not None:
        return source, found.drafters[0]
    reasons = "".join(f"; {what}: {why}" for what, why in found.missing.items())
    raise ConfigError(f"no trained drafter for this model is at hand, give its head{reasons}")


def split_prompts(prompts: Sequence[str]) -> tuple[list[str], list[str]]:
    """Held-out prompts, and those to train on: by hash, so that more prompts change few."""
    order = sorted(dict.fromkeys(prompts), key=lambda prompt: hashlib.sha256(prompt.encode()).digest())
    if len(order) < LEAST_PROMPTS:
        raise ConfigError(f"adapting needs at least {LEAST_PROMPTS} different prompts, got {len(order)}")
    count = min(len(order) // HELD_OUT_SHARE, MOST_HELD_OUT)
    return order[:count], order[count:]


def _check_room(tokenizer: Any, prompts: Sequence[str], max_length: int) -> None:
    turns = chat_turns(tokenizer)
    room = max_length - len(turns.opening) - len(turns.reply) - LEAST_ANSWER
    lengths = [len(tokenizer(prompt, add_special_tokens=False)["input_ids"]) for prompt in prompts]
    if too_long := sum(length > room for length in lengths):
        raise ConfigError(
            f"{too_long} of {len(prompts)} prompts leave no room for an answer in texts of {max_length} tokens (the "
            f"longest has {max(lengths)}): raise max_length, or leave them out"
        )


def _score(summary: dict[str, float]) -> float:
    """Tokens per round at temperatures 0 and 1."""
    return sum(value for name, value in summary.items() if name.startswith(("tree_16", "sampled_chain")))


class _Best:
    """Keeps the best drafter of a run, and the result so far, which an interrupted call reads again."""

    def __init__(self, folder: Path, on_evaluation: Callable[[Evaluation], object]) -> None:
        self._folder, self._report = folder, on_evaluation
        self._file, self._drafter, self._new = folder / RESULT, folder / "drafter", folder / "drafter.new"
        self._found = json.loads(self._file.read_text()) if self._file.exists() else None
        if self._found is not None and self._new.exists() and not self._drafter.exists():
            self._new.rename(self._drafter)  # A process ended between two steps of `_keep`.

    @property
    def result(self) -> Adapted:
        if self._found is None:
            raise CheckpointError(f"{self._folder} holds a finished run without {RESULT}: give another folder")
        return Adapted(self._drafter, **self._found)

    def see(self, evaluation: Evaluation) -> None:
        """The first one is the original's."""
        summary = evaluation.summary()
        if self._found is None or _score(summary) > _score(self._found["after"]):
            self._found = {"before": (self._found or {"before": summary})["before"], "after": summary}
            self._keep()
        self._report(evaluation)

    def _keep(self) -> None:
        """Copy the run's drafter and write the result: whenever the process ends, both are whole."""
        shutil.rmtree(self._new, ignore_errors=True)
        shutil.copytree(self._folder / "run" / "drafter", self._new)
        shutil.rmtree(self._drafter, ignore_errors=True)
        self._new.rename(self._drafter)
        with whole(self._file) as scratch:
            scratch.write_text(json.dumps(self._found, indent=2) + "\n", encoding="utf-8")
