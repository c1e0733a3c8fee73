"""The subject of a self-test: the model, how it speculates, and the prompts that it is tested on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from treespec.errors import ConfigError
from treespec.hf.generation.speculation import TreeSpeculation
from treespec.hf.introspect import ModelFacts
from treespec.lab.selftest.agreement import TIE, Plain, plain_greedy

TEXTS = (
    "The lighthouse on the northern cape was built after three ships had been lost within one winter. Its first keeper",
    "def largest(numbers):\n    best = numbers[0]\n    for number in numbers:",
    "Once upon a time there was a clockmaker who found",
)
LENGTHS = (21, 14, 9)


@dataclass
class Subject:
    """A model under test.

    Args:
        facts: of the model.
        speculation: how it speculates; None: by drafters of the self-test only.
        prompts: int64 [P] each, at least two, of different lengths.
        num_new: tokens of a greedy text.
        seed: of all that is drawn.
        num_samples: of a G-test, at most this many, and as many again where a p-value is suspect.
        seconds: of sampling, at most.
        advance: called with the share of the running check that is done.
    """

    facts: ModelFacts
    speculation: TreeSpeculation | None
    prompts: tuple[Tensor, ...]
    num_new: int
    seed: int
    num_samples: int
    seconds: float
    advance: Callable[[float], None] = lambda share: None

    @property
    def model(self) -> Any:
        return self.facts.model

    @property
    def verification(self) -> Any:
        return "auto" if self.speculation is None else self.speculation.options.verification

    @cached_property
    def plains(self) -> list[Plain]:
        """Plain greedy decoding of every prompt."""
        return [plain_greedy(self.model, self.inputs(prompt), self.num_new) for prompt in self.prompts]

    @cached_property
    def tie(self) -> float:
        """Logits closer than this may swap by rounding: four units of the dtype's precision at the largest logit."""
        logits = self.model(self.prompts[0][None], use_cache=False).logits.float()
        largest = float(logits[logits.isfinite()].abs().max())
        return max(TIE, 4 * torch.finfo(self.facts.dtype).eps * largest)

    def inputs(self, prompt: Tensor, num_rows: int = 1) -> dict[str, Tensor]:
        """Arguments of `generate` for one prompt in this many rows."""
        ids = prompt.expand(num_rows, -1)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def make_prompts(facts: ModelFacts, tokenizer: Any, prompts: Sequence[str | Tensor] | None) -> tuple[Tensor, ...]:
    """Prompts as token ids; without a tokenizer random ids from the middle of the vocabulary.

    Raises `ConfigError`: fewer than two prompts, an empty one, or strings without a tokenizer.
    """
    if prompts is None and tokenizer is None:
        size = facts.num_logits
        generator = torch.Generator("cpu").manual_seed(0)
        low, high = size // 8, max(size // 2, size // 8 + 2)
        rows = [torch.randint(low, high, (length,), generator=generator, device="cpu") for length in LENGTHS]
    else:
        rows = [_as_ids(prompt, tokenizer) for prompt in (TEXTS if prompts is None else prompts)]
    if len(rows) < 2 or not all(len(row) > 1 for row in rows):
        raise ConfigError("the self-test needs at least two prompts of at least two tokens each")
    return tuple(row.to(facts.device) for row in rows)


def _as_ids(prompt: str | Tensor, tokenizer: Any) -> Tensor:
    if isinstance(prompt, str):
        if tokenizer is None:
            raise ConfigError("the prompts are strings: give tokenizer=tokenizer too, or token ids")
        return torch.tensor(tokenizer(prompt)["input_ids"], dtype=torch.int64, device="cpu")
    return torch.as_tensor(prompt, dtype=torch.int64, device="cpu").flatten()
