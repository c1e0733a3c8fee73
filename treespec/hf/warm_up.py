"""Warm starts from a model: it writes text by itself, and its drafters are warmed up with that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from treespec.drafters import WarmStart
from treespec.errors import ConfigError
from treespec.hf.target import make_scorer
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
    check_count("num_tokens", num_tokens)
    writing = writing or Writing()
    scorer = make_scorer(model)
    ends = end_tokens(model, tokenizer)
    texts = write_texts(scorer, tokenizer, ends, num_tokens, Path(folder), writing, prompts, on_tokens)
    about = {"num_tokens": len(texts.tokens), "num_prompts": len(prompts), "writing": asdict(writing)}
    return WarmStart.from_texts(texts.tokens.split(texts.lengths.tolist()), texts.top, scorer.vocab_size, about)


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
