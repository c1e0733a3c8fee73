"""How texts begin and end: users' messages, the turns of a chat template, the ids that end an answer."""

import json
from pathlib import Path
from typing import Any, NamedTuple

from transformers import PreTrainedModel

from treespec.errors import ConfigError


class Turns(NamedTuple):
    """The chat template's own tokens, before the user's message and between it and the answer.

    Without a template `reply` is empty: the model writes one text without a message.
    """

    opening: list[int]
    reply: list[int]


def chat_turns(tokenizer: Any) -> Turns:
    """The turns of a chat template; without one, a text's first token. Raises `ConfigError`: there is neither."""
    if getattr(tokenizer, "chat_template", None) is None:
        first = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
        if first is None:
            raise ConfigError("the tokenizer has no chat template and no first token: give prompts to start from")
        return Turns([first], [])
    mark = "MESSAGE"
    turns = [{"role": "user", "content": mark}]
    chat = str(tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True))
    if mark not in chat:
        raise ConfigError("the tokenizer's chat template does not contain the user's message")
    opening, _, reply = chat.rpartition(mark)
    return Turns(*(tokenizer(part, add_special_tokens=False)["input_ids"] for part in (opening, reply)))


def end_tokens(model: PreTrainedModel, tokenizer: Any) -> list[int]:
    """The ids that end an answer, by the generation configuration or the tokenizer. Raises `ConfigError`: none."""
    found = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    if found is None:
        found = tokenizer.eos_token_id
    if found is None:
        raise ConfigError("neither the generation configuration nor the tokenizer has an eos_token_id: texts never end")
    return list(found) if isinstance(found, (list, tuple)) else [int(found)]


def read_prompts(path: Path) -> list[str]:
    """Users' messages from a file: one per line, or in `*.jsonl` one object with the key "prompt" per line.

    Raises `ConfigError`: the file is empty or not UTF-8 text, or a line of a `*.jsonl` file is something else.
    """
    try:
        lines = [line for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text: {error}") from error
    if not lines:
        raise ConfigError(f"{path} holds no message: leave out the file to let the model write its own messages")
    return [_parse_prompt(line, path) for line in lines] if path.suffix == ".jsonl" else lines


def _parse_prompt(line: str, path: Path) -> str:
    try:
        prompt = json.loads(line)["prompt"]
    except (ValueError, KeyError, TypeError):
        prompt = None
    if not isinstance(prompt, str):
        raise ConfigError(f'{path}: expected one {{"prompt": "..."}} per line, got {line[:80]!r}')
    return prompt
