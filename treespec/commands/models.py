"""A command's model with its tokenizer, and the drafters that are made for it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from treespec.commands.console import CONSOLE
from treespec.errors import ConfigError
from treespec.hf.loading.models import dtype_of, load_model, load_tokenizer
from treespec.lab import smollm2
from treespec.lab.named import named_drafters
from treespec.training.text.writing import packed

Messages = Sequence[Mapping[str, str]]


@dataclass(frozen=True)
class Loaded:
    """A model in evaluation mode with its tokenizer and its name, and the drafters' models by name, loaded once.

    `is_packed`: the drafters' models are packed as the target is.
    """

    model: Any
    tokenizer: Any
    name: str
    parts: dict[str, Any] = field(default_factory=dict)
    is_packed: bool = False

    def drafters(self, names: Sequence[str]) -> list[Any]:
        """New drafters of these names, see `named_drafters`."""
        known = set(self.parts)
        drafters = named_drafters(names, self.model, self.tokenizer, self.name, self.parts)
        for name in self.parts.keys() - known if self.is_packed else ():
            packed(getattr(self.parts[name], "head", self.parts[name]))
        return drafters

    def encode(self, messages: Messages, raw: str | None = None) -> dict[str, Tensor]:
        """Arguments of `generate` on the model's device, for messages or for a text as it is."""
        found = encode(self.tokenizer, [messages] if raw is None else [[{"content": raw}]], raw is not None)
        return {name: value.to(self.model.device) for name, value in found.items()}


def encode(tokenizer: Any, chats: Sequence[Messages], is_raw: bool = False) -> dict[str, Tensor]:
    """Rows of messages by the chat template, where there is one, else each row's last message as it is."""
    options: dict[str, Any] = {"return_tensors": "pt", "padding": len(chats) > 1}
    texts = [messages[-1]["content"] for messages in chats]
    if not is_raw and getattr(tokenizer, "chat_template", None) is not None:
        texts = [tokenizer.apply_chat_template(one, tokenize=False, add_generation_prompt=True) for one in chats]
        options["add_special_tokens"] = False
    found = tokenizer(texts, **options)
    return {name: found[name] for name in ("input_ids", "attention_mask")}


def device_of(name: str | None) -> torch.device:
    """The device of that name, or a GPU if there is one; a `ConfigError` for a device that does not exist."""
    name = name or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.zeros(1, dtype=torch.float32, device=name).tolist()
    except (RuntimeError, AssertionError) as error:  # PyTorch without CUDA raises an AssertionError.
        raise ConfigError(f"--device must be an existing cpu, cuda or cuda:NUMBER, got {name!r} ({error})") from error
    return torch.device(name)


def load(name: str | None, dtype: str | None = None, device: str | None = None, *, is_packed: bool = False) -> Loaded:
    """The named model, or the embedded SmolLM2. Errors are those of `load_model`."""
    processor = device_of(device)
    if name is None:
        with CONSOLE.status(f"loading {smollm2.NAME}"), smollm2.quiet_transformers():
            model, tokenizer = smollm2.load(say=CONSOLE.print)
        torch.nn.Module.to(model, processor, model.dtype if dtype is None else dtype_of(dtype))
    else:
        model, tokenizer = load_target(name, dtype, processor), load_tokenizer(name)
    if is_packed:
        packed(model)
    return Loaded(model, tokenizer, name or smollm2.NAME, is_packed=is_packed)


def load_target(name: str, dtype: str | None = None, device: torch.device | str = "cpu") -> Any:
    """A model in evaluation mode on the device, without its tokenizer."""
    options = {} if dtype is None else {"dtype": dtype_of(dtype)}
    with CONSOLE.status(f"loading {name}"), smollm2.quiet_transformers():
        return torch.nn.Module.to(load_model(name, **options).eval(), device)
