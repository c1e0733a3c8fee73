"""Warm starts from a model: it writes text, from which its drafters learn before their first call."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from treespec.drafters import WarmStart
from treespec.hf.introspect import num_logits
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
    """Let a model write text and build a warm start from it; arguments and errors are those of `write_texts`."""
    writing = writing or Writing()
    texts = write_texts(model, tokenizer, num_tokens, folder, prompts=prompts, writing=writing, on_tokens=on_tokens)
    about = {"num_tokens": len(texts.tokens), "num_prompts": len(prompts), "writing": asdict(writing)}
    return WarmStart.from_texts(texts.tokens.split(texts.lengths.tolist()), texts.top, num_logits(model), about)
