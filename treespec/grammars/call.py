"""The constraints of one call: along the branches of its trees, and on what is drafted."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from transformers import LogitsProcessor, PreTrainedTokenizerBase

from treespec.grammars.drafts import GrammarDrafts
from treespec.grammars.forced_text import ForcedText, spellings_of
from treespec.grammars.prefix_function import along_branches
from treespec.grammars.processor import Constraint, GrammarProcessor
from treespec.hf.add_ons import AddOn
from treespec.hf.generation.call import Call
from treespec.protocols import Drafter


class Constraints(AddOn):
    """Grammars and prefix functions among a call's processors; grammars begin after the prompt while the call runs."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._processors = along_branches(call.processors, call.input_ids)

    def for_paths(self, processors: Sequence[LogitsProcessor]) -> Sequence[LogitsProcessor]:
        """The call's processors, prefix functions as `PrefixProcessor`."""
        return self._processors

    def for_draft(self, drafter: Drafter) -> Drafter:
        """The drafter under the constraints."""
        found = [one for one in self._processors if isinstance(one, Constraint)]
        tokenizer = self._call.tokenizer
        tokenizer = getattr(tokenizer, "tokenizer", tokenizer)  # A processor of images has one.
        spellings = spellings_of(tokenizer) if isinstance(tokenizer, PreTrainedTokenizerBase) else None
        return GrammarDrafts(drafter, ForcedText(found, spellings, self._call.end_tokens)) if found else drafter

    def __enter__(self) -> Self:
        self._begin(self._call.num_prompt)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._begin(None)

    def _begin(self, num_prompt: int | None) -> None:
        """Let the grammars begin after this many ids, whatever paths they are asked for."""
        for processor in self._processors:
            if isinstance(processor, GrammarProcessor):
                processor.begin(num_prompt)
