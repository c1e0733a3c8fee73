"""Text that a model writes itself, for warm starts and for the training of drafters.

Every batch is one shard on disk with its own seed, so that an interrupted run resumes at the missing shards and gives
the same text.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from treespec.checks import check_count
from treespec.cpu import prepack_linears
from treespec.drafters import WarmStart
from treespec.errors import ConfigError, TreespecError
from treespec.hf.introspect import num_logits
from treespec.hf.models.make_scorer import make_scorer
from treespec.training.text.batch import Message, Writing, write_batch
from treespec.training.text.chat import chat_turns, end_tokens
from treespec.training.text.texts import Texts, fingerprint, join, read_texts, save_texts


def write_texts(
    model: PreTrainedModel,
    tokenizer: Any,
    num_tokens: int | None,
    folder: str | Path,
    *,
    prompts: Sequence[str] = (),
    openings: Sequence[str] = (),
    writing: Writing | None = None,
    on_tokens: Callable[[int], object] = lambda _: None,
) -> Texts:
    """Let a model write text for a warm start or for the training of a drafter.

    On a CPU from packed weights, which halve the time of small batches and take as much memory again as the layers.

    Args:
        tokenizer: gives the chat template and encodes the prompts.
        num_tokens: how much text; the last batch may exceed it. None: one answer to every prompt.
        folder: of the shards; existing ones are read.
        prompts: users' messages that are answered first; then the model writes its own.
        openings: how the model's own messages begin, in turn; without openings it starts from the bare user turn.
        on_tokens: called with the number of tokens that were added, those of existing shards first.

    Raises:
        ConfigError: a number out of range, texts longer than the model's positions, or no chat template, first or
            end-of-text token.
        CheckpointError: the folder's text is damaged, or was written with other settings or by another model.
    """
    check_count("num_tokens", len(prompts) if num_tokens is None else num_tokens)
    writing, folder, scorer = writing or Writing(), Path(folder), make_scorer(model)
    ends, turns = end_tokens(model, tokenizer), chat_turns(tokenizer)
    if scorer.max_positions is not None and writing.max_length > scorer.max_positions + 1:
        raise ConfigError(f"max_length is {writing.max_length}, the model has {scorer.max_positions} positions")
    given, opened = ([tokenizer(t, add_special_tokens=False)["input_ids"] for t in few] for few in (prompts, openings))
    about = {"model": fingerprint(model), "turns": turns, "prompts": _digest(given), "openings": _digest(opened)}
    settings = json.dumps(asdict(writing) | about)
    folder.mkdir(parents=True, exist_ok=True)
    shards, size = list[Texts](), writing.batch_size
    with packed(model, size):
        while len(shards) * size < len(given) if num_tokens is None else _num_tokens(shards) < num_tokens:
            number, path = len(shards), folder / f"text-{len(shards):05d}.safetensors"
            if path.exists():
                shards.append(read_texts(path, settings))
                on_tokens(len(shards[-1].tokens))
                continue
            last = len(given) if num_tokens is None else (number + 1) * size
            batch = [_message(given, opened, i) for i in range(number * size, min(last, (number + 1) * size))]
            shards.append(write_batch(scorer, turns, ends, batch, writing, number, on_tokens))
            save_texts(path, shards[-1], settings)
    return join(shards)


def packed(module: nn.Module, num_rows: int = 16) -> AbstractContextManager[object]:
    """A module's packed weights, where it can have them: on a CPU, in float32, not packed before."""
    try:
        return prepack_linears(module, num_rows)
    except TreespecError:
        return nullcontext()


def _num_tokens(shards: Sequence[Texts]) -> int:
    return sum(len(texts.tokens) for texts in shards)


def _message(given: Sequence[Sequence[int]], opened: Sequence[Sequence[int]], number: int) -> Message:
    """Message `number`: the given ones come first, then the model's own with their openings in turn."""
    if number < len(given):
        return Message(given[number], is_open=False)
    return Message(opened[(number - len(given)) % len(opened)] if opened else ())


def _digest(messages: Sequence[object]) -> str:
    """A hash in place of thousands of messages, as every shard keeps it."""
    return hashlib.sha256(json.dumps(messages).encode()).hexdigest()


def warm_up(
    model: PreTrainedModel,
    tokenizer: Any,
    num_tokens: int,
    folder: str | Path,
    *,
    prompts: Sequence[str] = (),
    writing: Writing | None = None,
    on_tokens: Callable[[int], object] = lambda _: None,
) -> WarmStart:
    """Let a model write text and build a warm start from it; arguments and errors are those of `write_texts`."""
    writing = writing or Writing()
    texts = write_texts(model, tokenizer, num_tokens, folder, prompts=prompts, writing=writing, on_tokens=on_tokens)
    about = {"num_tokens": len(texts.tokens), "num_prompts": len(prompts), "writing": asdict(writing)}
    return WarmStart.from_texts(texts.tokens.split(texts.lengths.tolist()), texts.top, num_logits(model), about)
