"""Warm starts from a model: it writes text by itself, and its drafters are warmed up with that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from treespec.drafters import WarmStart
from treespec.hf.models.make_scorer import make_scorer
from treespec.training.text.writing import Writing, write_texts


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

    Arguments and errors are those of `write_texts`.
    """
    writing = writing or Writing()
    texts = write_texts(model, tokenizer, num_tokens, folder, prompts=prompts, writing=writing, on_tokens=on_tokens)
    about = {"num_tokens": len(texts.tokens), "num_prompts": len(prompts), "writing": asdict(writing)}
    vocab_size = make_scorer(model).vocab_size
    return WarmStart.from_texts(texts.tokens.split(texts.lengths.tolist()), texts.top, vocab_size, about)
