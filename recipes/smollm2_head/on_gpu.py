"""The head that ships, trained on a GPU: text, features and training in one process.

It begins as the head in `--start`, by default the one that ships, and its output rows are trained too. The target
writes `--texts` tokens. Everything follows the clock: `--minutes` of training, with evaluations on texts that are held
out, whose lines (`curve.jsonl`) are the curve of tokens against acceptance. The texts, by seed, the head's files and
the curve lie in `--out`, of which every run has its own.

    python -m recipes.smollm2_head.on_gpu --out runs/more --texts 16000000 --minutes 9

The same command goes on after an interruption. Texts are kept in parts: new messages make up for the missing ones, with
the whole time for writing. Training goes on from its last evaluation, with the weights, the optimiser and the clock of
then, in a new pass over the texts. Neither is what it had been without an interruption.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, takewhile
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recipes.smollm2_head.corpus import MODEL_NAME, Text, append, read_corpus
from recipes.smollm2_head.messages import FIRST_KINDS, LATER_KINDS, Messages
from recipes.smollm2_head.slots import Job, Slots
from treespec import shipped_head
from treespec.data.tensor_file import whole
from treespec.heads.eagle3.module import Eagle3Head, unroll
from treespec.hf.introspect import pick_layers
from treespec.hf.loading.heads import load_head
from treespec.lab import smollm2
from treespec.training.data import Batch
from treespec.training.eagle3 import Eagle3Learner, make_eagle3
from treespec.training.evaluate import EvaluatedDrafts, evaluate
from treespec.training.features import NUM_CANDIDATES
from treespec.training.loop import MAX_GRADIENT_NORM, cast_weights, learning_rate, make_optimizer
from treespec.training.objective import Draft, Objective
from treespec.training.options import TrainingConfig
from treespec.training.text.batch import Message
from treespec.tree.transfer import upload

HIDDEN_LAYERS = (2, 15, 27)
MAX_MESSAGE = 160
"""Tokens of a message that the target finishes."""
SHARES = {"talk": 0.24, "openings": 0.2, "tasks": 0.2, "languages": 0.08, "own": 0.03, "turns": 0.13, "sources": 0.12}
"""The kinds of messages; "own": the target begins them, too."""
TEMPERATURES = (0.0, 0.7, 1.0)
LENGTHS = {False: 512, True: 640}
"""The longest texts, without and with earlier ones in them."""
TEXT_TOKENS = 260
"""About the mean length of a text, by which the number of messages is chosen."""
PART = 2048
"""Texts that are kept together."""
LOG_EVERY = 50
LOGITS_ROWS = 8192
"""Rows of one product with the output head."""
NUM_HELD_OUT = 160
STATE = "state.pt"
BUCKET = 64
"""Batches that are sorted by length together."""


def written_texts(model: Any, tokenizer: Any, args: argparse.Namespace) -> list[Text]:
    """The run's texts, written where they are not all there yet."""
    folder = args.out / f"texts-{args.seed}"
    if not folder.is_dir():
        part = folder.with_suffix(".part")
        write_texts(model, tokenizer, part, args)
        part.rename(folder)
    return read_corpus(folder)


def write_texts(model: Any, tokenizer: Any, folder: Path, args: argparse.Namespace) -> None:
    """About `args.texts` tokens of text of all kinds, with those in `folder`; those over earlier texts come last."""
    messages = Messages(model, tokenizer, room=LENGTHS[False] * 3 // 4)
    texts = read_corpus(folder)
    there, seed = Counter(text.kind for text in texts), f"{args.seed} {len(texts)}" if texts else args.seed
    counts = {kind: max(round(args.texts / TEXT_TOKENS * share) - there[kind], 0) for kind, share in SHARES.items()}
    for is_later, kinds in ((False, (*FIRST_KINDS, "own")), (True, LATER_KINDS)):
        end = time.perf_counter() + 60 * args.write_minutes * sum(SHARES[kind] for kind in kinds)
        jobs = [
            Job(kind, message, TEMPERATURES[number % len(TEMPERATURES)])
            for kind in kinds
            for number, message in enumerate(some(messages, kind, counts[kind], texts, seed))
        ]
        if not jobs:
            continue
        Random(args.seed).shuffle(jobs)
        rows = min(args.rows, len(jobs))
        slots = Slots(model, messages.turns, messages.ends, rows, LENGTHS[is_later], MAX_MESSAGE)
        texts += keep(slots.write(takewhile(lambda _, end=end: time.perf_counter() < end, jobs)), folder)
        del slots
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def some(messages: Messages, kind: str, count: int, texts: Sequence[Text], seed: int | str) -> list[Message]:
    """`count` messages of a kind, in parts that each begin from a seed of their own."""
    if kind == "own":
        return [Message()] * count
    found = list[Message]()
    while len(found) < count:
        found += messages.make(kind, min(4096, count - len(found)), Random(f"{kind} {seed} {len(found)}"), texts)
    return found


def keep(texts: Iterable[Text], folder: Path) -> list[Text]:
    """The texts, each part of which is in the folder as soon as it is written."""
    start, tokens, kept = time.perf_counter(), 0, list[Text]()
    waiting = iter(texts)
    while part := list(islice(waiting, PART)):
        append(folder, part)
        kept, tokens = kept + part, tokens + sum(len(text.tokens) for text in part)
        say(f"{len(kept):,} texts, {tokens:,} tokens, {tokens / (time.perf_counter() - start):,.0f} per second")
    return kept


def say(line: str) -> None:
    print(time.strftime("%H:%M:%S"), line, flush=True)


class Features:
    """Batches of texts with the target's states and distributions, all on its device."""

    def __init__(self, model: Any, texts: Sequence[Text], batch_tokens: int, seed: int) -> None:
        self._model, self._texts, self._size, self._rng = model, texts, batch_tokens, Random(seed)
        self._device = model.lm_head.weight.device
        self._rows = model.lm_head.weight.float()

    def order(self) -> Iterator[list[Text]]:
        """The batches of one pass over the texts: texts of similar length, `batch_tokens` with their padding."""
        texts = self._rng.sample(self._texts, len(self._texts))
        mean = sum(len(text.tokens) for text in texts) / len(texts)
        step = max(round(BUCKET * self._size / mean), 1)
        batches = [
            batch
            for start in range(0, len(texts), step)
            for batch in self._groups(sorted(texts[start : start + step], key=lambda text: len(text.tokens)))
        ]
        self._rng.shuffle(batches)
        return iter(batches)

    def _groups(self, texts: Sequence[Text]) -> Iterator[list[Text]]:
        group = list[Text]()
        for text in texts:
            if group and (len(group) + 1) * len(text.tokens) > self._size:
                yield group
                group = []
            group.append(text)
        if group:
            yield group

    @torch.no_grad()
    def read(self, texts: Sequence[Text]) -> Batch:
        """The features of a batch."""
        lengths = np.array([len(text.tokens) for text in texts])
        positions = np.arange(lengths.max())
        tokens = np.zeros((len(texts), lengths.max()), np.int64)
        for row, text in zip(tokens, texts, strict=True):
            row[: len(text.tokens)] = text.tokens
        is_inside = positions < lengths[:, None] - 1  # The last token has no next one.
        own, greedy = (np.array([getattr(text, name) for text in texts])[:, None] for name in ("first", "greedy"))
        is_generated, is_greedy = (is_inside & (positions >= first) for first in (own, np.maximum(own, greedy)))
        parts = map(torch.from_numpy, (tokens, is_generated, is_greedy))
        ids, is_generated, is_greedy = upload(self._device, *parts)
        output = self._model.model(input_ids=ids, use_cache=False, output_hidden_states=True)
        states = torch.cat(list(pick_layers(output, HIDDEN_LAYERS).values()), -1)
        flat = output.last_hidden_state.flatten(0, 1)
        parts = [self._top(part) for part in flat.split(LOGITS_ROWS)]
        top_ids, top_probs = (torch.cat(part).view(*ids.shape, -1) for part in zip(*parts, strict=True))
        return Batch(ids, states, top_ids, top_probs, is_generated, is_greedy)

    def _top(self, states: Tensor) -> tuple[Tensor, Tensor]:
        logs = torch.nn.functional.linear(states.float(), self._rows).log_softmax(-1)
        # A radix search over half the bits; only which of two equal ones is the last is left to rounding.
        ids = logs.bfloat16().topk(NUM_CANDIDATES, sorted=False).indices
        return ids, logs.gather(1, ids).exp()


def draft_starts(texts: Sequence[Text], num_depths: int, device: torch.device) -> list[tuple[Tensor, Tensor]]:
    """By depth, rows and starts of drafts whose token the target chose: known here, so that no GPU is waited for."""
    found = []
    for depth in range(num_depths):
        rows = [(row, max(text.first - 1 - depth, 0), len(text.tokens) - 2 - depth) for row, text in enumerate(texts)]
        row_ids = np.concatenate([np.full(max(end - start, 0), row) for row, start, end in rows])
        starts = np.concatenate([np.arange(start, max(end, start)) for _, start, end in rows])
        row_ids, starts = upload(device, *map(torch.from_numpy, (row_ids, starts)))
        found.append((row_ids, starts))
    return found


class PlacedLearner(Eagle3Learner):
    """A head that drafts from given positions, see `draft_starts`; without any, from all.

    Attributes:
        starts: by depth, rows int64 [M] and starts int64 [M].
    """

    starts: list[tuple[Tensor, Tensor]] | None = None

    def drafts(self, batch: Batch, generator: torch.Generator | None) -> list[Draft]:
        """See `Learner`."""
        if self.starts is None:
            return super().drafts(batch, generator)
        features = self.head.fuse(batch.states[:, :-1].to(self.head.fc.weight.dtype))
        outputs = unroll(self.head, batch.tokens[:, 1:], features, min(self.num_depths, features.shape[1]))
        return [
            Draft(out[rows, starts], rows, starts + 1)
            for out, (rows, starts) in zip(outputs, self.starts, strict=False)
        ]


class Trainee:
    """The head with its optimiser."""

    def __init__(self, model: Any, config: TrainingConfig, start: Path) -> None:
        self.learner = make_learner(model, config, start)
        device = model.lm_head.weight.device
        self.objective = Objective(self.learner, model.config.vocab_size, config.depth_decay).to(device)
        self._optimizer = make_optimizer(self.objective, config.learning_rate)
        self._cast = cast_weights(self.objective, torch.bfloat16 if device.type == "cuda" else torch.float32)

    def save(self, path: Path, progress: tuple[float, int, int, int]) -> None:
        """Weights and optimiser, for `load`."""
        state = [self.objective.state_dict(), self._optimizer.state_dict(), progress]
        with whole(path) as scratch:
            torch.save(state, scratch)

    def load(self, path: Path) -> tuple[float, int, int, int]:
        """Go on as saved: seconds of training, steps, tokens and evaluations; nothing of each without a file."""
        if not path.is_file():
            return 0.0, 0, 0, 0
        weights, optimizer, progress = torch.load(path, self.learner.head.fc.weight.device, weights_only=True)
        self.objective.load_state_dict(weights)
        self._optimizer.load_state_dict(optimizer)
        return progress

    def step(self, batch: Batch, where: list[tuple[Tensor, Tensor]], rate: float, tv_weight: float) -> Tensor:
        """One optimiser step; the loss, which is not waited for."""
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self.learner.starts = where
        loss = torch.func.functional_call(self.objective, self._cast(), (batch, tv_weight, None))
        self._optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.objective.parameters(), MAX_GRADIENT_NORM)
        self._optimizer.step()
        return loss.detach()

    def evaluate(self, batches: Iterable[tuple[Sequence[Text], Batch]]) -> dict[str, Any]:
        """The evaluation's summary, and the acceptance by depth and rank."""
        self.learner.starts = None
        found = list[EvaluatedDrafts]()
        for texts, batch in batches:
            parts = [part.cpu() for part in self.objective.evaluate(batch)]
            found += [
                EvaluatedDrafts(*(part[row, : len(text.tokens)] for part in parts)) for row, text in enumerate(texts)
            ]
        result = evaluate(found)
        return result.summary() | {
            "overlaps": result.overlap,
            "chain": result.chain,
            "sampled_chain": result.sampled_chain,
            "greedy_acceptance": result.greedy_acceptance,
        }


def make_learner(model: Any, config: TrainingConfig, start: Path) -> PlacedLearner:
    """The head in a folder, in float32, its output rows to be trained too."""
    trained = load_head(start, model, torch.float32)
    assert isinstance(trained, Eagle3Head)
    head = make_eagle3(model, trained.target_ids.cpu(), HIDDEN_LAYERS, config, trained).head
    learner = PlacedLearner(head, config.depths)
    learner.has_own_rows = True
    head.lm_head.requires_grad_(True)
    return learner


def train(model: Any, texts: Sequence[Text], out: Path, args: argparse.Namespace) -> None:
    """Train for `args.minutes`; evaluated at the beginning and `args.evaluations` times, the last at the end."""
    held_out = sorted((text for text in texts if text.is_held_out), key=lambda text: text.order)[:NUM_HELD_OUT]
    chosen = [text for text in texts if not text.is_held_out and len(text.tokens) - 2 > text.first]
    say(
        f"{len(chosen):,} texts to train on, {sum(len(text.tokens) for text in chosen):,} tokens; {len(held_out)} apart"
    )
    config = TrainingConfig(
        num_depths=args.depths, learning_rate=args.learning_rate, warmup_steps=100, tv_weight=0.7, tv_start=0.5
    )
    trainee = Trainee(model, config, args.start)
    seconds, step, tokens, evaluations = trainee.load(out / STATE)
    features, apart = (Features(model, part, args.batch_tokens, args.seed + step) for part in (chosen, held_out))
    order, device, start = iter(()), model.lm_head.weight.device, time.perf_counter() - seconds
    while evaluations <= args.evaluations:
        share = (time.perf_counter() - start) / (60 * args.minutes)
        if share >= evaluations / args.evaluations:
            report(trainee, apart, out, step, tokens)
            evaluations = int(share * args.evaluations) + 1
            trainee.save(out / STATE, (time.perf_counter() - start, step, tokens, evaluations))
            continue
        if (group := next(order, None)) is None:
            order = features.order()
            group = next(order)
        batch, where = features.read(group), draft_starts(group, config.depths, device)
        rate, tv_weight = learning_rate(config, step, share), config.tv_weight * (share >= config.tv_start)
        loss = trainee.step(batch, where, rate, tv_weight)
        step, tokens = step + 1, tokens + sum(len(text.tokens) for text in group)
        if step % LOG_EVERY == 0:
            speed = tokens / (time.perf_counter() - start)
            say(f"step {step:,}, {tokens:,} tokens, {speed:,.0f} per second: {float(loss)}")
            if not math.isfinite(float(loss)):
                raise FloatingPointError(f"the loss of step {step} is {float(loss)}")


def report(trainee: Trainee, apart: Features, out: Path, step: int, tokens: int) -> None:
    """Evaluate the head and write its files."""
    with torch.no_grad():
        batches = [(group, apart.read(group)) for group in apart.order()]
    line = {"step": step, "tokens": tokens} | trainee.evaluate(batches)
    with (out / "curve.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
    say(str({name: value for name, value in line.items() if not isinstance(value, (list, dict))}))
    trainee.learner.save(out / "head", MODEL_NAME, torch.float16)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--start", type=Path, default=shipped_head(smollm2.NAME), help="the folder of a head")
    parser.add_argument("--texts", type=int, default=16_000_000, help="tokens to write, of this seed, once in --out")
    parser.add_argument("--write-minutes", type=float, default=60, help="no text is begun later than this")
    parser.add_argument("--rows", type=int, default=3072, help="texts that are written at once")
    parser.add_argument("--minutes", type=float, default=9)
    parser.add_argument("--batch-tokens", type=int, default=12_288)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--depths", type=int, default=5)
    parser.add_argument("--evaluations", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.backends.cuda.matmul.allow_tf32 = True
    args.out.mkdir(parents=True, exist_ok=True)
    loaded: tuple[Any, Any] = smollm2.load()
    model, tokenizer = loaded
    if torch.cuda.is_available():
        model = model.to("cuda", torch.bfloat16)
    train(model, written_texts(model, tokenizer, args), args.out, args)


if __name__ == "__main__":
    main()
