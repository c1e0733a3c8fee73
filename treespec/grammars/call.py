"""The constraints of one call: along the branches of its trees, and on what is drafted."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

from jaxtyping import Int
from torch import Tensor
from transformers import LogitsProcessor, PreTrainedTokenizerBase

from treespec.grammars.drafts import GrammarDrafts
from treespec.grammars.forced_text import ForcedText, spellings_of
from treespec.grammars.prefix_function import PrefixProcessor, along_branches
from treespec.grammars.processor import GrammarProcessor
from treespec.protocols import Drafter


class Constraints:
    """Grammars and prefix functions among a call's processors, begun while the call runs, which is its context.

    Attributes:
        processors: all of the call's, prefix functions as `PrefixProcessor`.
    """

    def __init__(
        self, processors: Sequence[LogitsProcessor], prompts: Int[Tensor, "B P"], tokenizer: Any, ends: Container[int]
    ) -> None:
        self.processors = along_branches(processors, prompts)
        self._num_prompt, self._tokenizer, self._ends = prompts.shape[1], tokenizer, ends

    def drafter(self, drafter: Drafter) -> Drafter:
        """The drafter under the constraints."""
        found = [one for one in self.processors if isinstance(one, (GrammarProcessor, PrefixProcessor))]
        tokenizer = getattr(self._tokenizer, "tokenizer", self._tokenizer)  # A processor of images has one.
        spellings = spellings_of(tokenizer) if isinstance(tokenizer, PreTrainedTokenizerBase) else None
        return GrammarDrafts(drafter, ForcedText(found, spellings, self._ends)) if found else drafter

    def __enter__(self) -> Constraints:
        self._begin(self._num_prompt)
        return self

    def __exit__(self, *error: object) -> None:
        self._begin(None)

    def _begin(self, num_prompt: int | None) -> None:
        """Let the grammars begin after so many ids, whatever paths they are asked for."""
        for processor in self.processors:
            if isinstance(processor, GrammarProcessor):
                processor.begin(num_prompt)
