"""Warm starts from a model: it writes text by itself, and its drafters are warmed up with that."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from treespec.drafters import WarmStart
from treespec.errors import ConfigError
from treespec.hf.scorers import make_scorer
from treespec.hf.texts import Texts
from treespec.hf.writing import Writing, write_texts
from treespec.policies.checks import check_count


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
    """Let a model write text from its own chat template and build a warm start from it.

    Args:
        num_tokens: how much text; the last batch may make it more.
        folder: where the text is kept. What it holds already is not written again, so that an interrupted run goes on.
        prompts: users' messages that are answered first; then the model writes its own.
        writing: how text is written; None: as `Writing()` says.
        on_tokens: called with the number of tokens that were added.

    Raises:
        ConfigError: a number out of range, a tokenizer that gives no start, or no end-of-text token.
        CheckpointError: the folder's text is damaged or was written with other settings.
    """
    writing = writing or Writing()
    texts = write(model, tokenizer, num_tokens, folder, prompts=prompts, writing=writing, on_tokens=on_tokens)
    about = {"num_tokens": len(texts.tokens), "num_prompts": len(prompts), "writing": asdict(writing)}
    vocab_size = make_scorer(model).vocab_size
    return WarmStart.from_texts(texts.tokens.split(texts.lengths.tolist()), texts.top, vocab_size, about)


def write(
    model: PreTrainedModel,
    tokenizer: Any,
    num_tokens: int,
    folder: str | Path,
    *,
    prompts: Sequence[str] = (),
    writing: Writing | None = None,
    on_tokens: Callable[[int], object] = lambda _: None,
) -> Texts:
    """Let a model write text, for whatever is made from it: a warm start, a trained draft head.

    Arguments and errors are those of `warm_up`.
    """
    check_count("num_tokens", num_tokens)
    scorer, ends = make_scorer(model), end_tokens(model, tokenizer)
    return write_texts(scorer, tokenizer, ends, num_tokens, Path(folder), writing or Writing(), prompts, on_tokens)


def read_prompts(path: Path) -> list[str]:
    """Users' messages from a file: one per line, or in `*.jsonl` one object with the key "prompt" per line.

    Raises:
        ConfigError: a line of a `*.jsonl` file is something else.
    """
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return [_parse_prompt(line, path) for line in lines] if path.suffix == ".jsonl" else lines


def _parse_prompt(line: str, path: Path) -> str:
    try:
        prompt = json.loads(line)["prompt"]
    except (ValueError, KeyError, TypeError):
        prompt = None
    if not isinstance(prompt, str):
        raise ConfigError(f'{path}: expected one {{"prompt": "..."}} per line, got {line[:80]!r}')
    return prompt


def end_tokens(model: PreTrainedModel, tokenizer: Any) -> list[int]:
    """The ids that end an answer.

    Raises:
        ConfigError: neither the model's generation configuration nor the tokenizer names one.
    """
    config = getattr(model, "generation_config", None)
    found = getattr(config, "eos_token_id", None)
    if found is None:
        found = tokenizer.eos_token_id
    if found is None:
        raise ConfigError("neither the generation configuration nor the tokenizer has an eos_token_id: texts never end")
    return list(found) if isinstance(found, (list, tuple)) else [int(found)]
