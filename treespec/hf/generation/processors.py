"""The caller's logits processors, applied to positions of a tree as plain `generate` applies them to a batch."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers.generation import logits_process as library

from treespec.errors import LogitsError, UnsupportedModeError
from treespec.protocols import PathProcessors
from treespec.sampling import NoProcessors

_PENALTY = library.RepetitionPenaltyLogitsProcessor
_PATH_FREE = (
    library.TemperatureLogitsWarper,
    library.TopKLogitsWarper,
    library.TopPLogitsWarper,
    library.TopHLogitsWarper,
    library.MinPLogitsWarper,
    library.TypicalLogitsWarper,
    library.EpsilonLogitsWarper,
    library.EtaLogitsWarper,
    library.SuppressTokensLogitsProcessor,
    library.InfNanRemoveLogitsProcessor,
    library.LogitNormalization,
)
"""Processors that look at the scores only."""

_KEEPING = (*(kind for kind in _PATH_FREE if kind is not library.SuppressTokensLogitsProcessor), _PENALTY)
"""Processors that leave the best of the tokens with any score a score."""

_ROW_FREE = (
    *_PATH_FREE,
    library.MinLengthLogitsProcessor,
    library.MinNewTokensLengthLogitsProcessor,
    library.RepetitionPenaltyLogitsProcessor,
    library.NoRepeatNGramLogitsProcessor,
    library.SequenceBiasLogitsProcessor,
    library.NoBadWordsLogitsProcessor,
    library.ForcedBOSTokenLogitsProcessor,
    library.ForcedEOSTokenLogitsProcessor,
    library.ExponentialDecayLengthPenalty,
    library.SuppressTokensAtBeginLogitsProcessor,
    library.WatermarkLogitsProcessor,
)
"""Processors that ignore a row's number, so that paths of one row may be stacked as a batch."""

_STATEFUL = (library.UnbatchedClassifierFreeGuidanceLogitsProcessor, library.SynthIDTextWatermarkLogitsProcessor)
"""Processors with state from call to call, which cannot be applied to several branches."""

_STATEFUL_PACKAGES = ("xgrammar", "outlines", "llguidance", "lmformatenforcer", "transformers_cfg")
"""Packages whose processors have state: they follow one text by counting their calls."""


class BranchProcessor(library.LogitsProcessor, ABC):
    """A processor that is made for the branches of a tree; those of the add-on `grammars` are."""

    is_row_free = False
    """Whether all rows of a batch get the same scores for the same text."""

    @abstractmethod
    def of_row(self, ids: Tensor, scores: Tensor, row: int) -> Tensor:
        """Scores [M, V] after texts int64 [M, L] of one row of the caller's batch."""


class TreeProcessors:
    """`PathProcessors` over a list of transformers logits processors.

    A processor must be a function of (input_ids, scores): one with state cannot be applied along branches.

    Args:
        processors: prepared processors, in order.
        num_rows: rows of the caller's batch. Processors that are not known to ignore the row's number see each path
            at its own row of a batch of this size, as in plain decoding.
        num_padding: the left padding of every row; penalties that are to ignore just this see texts without it.
        prompt_ids: int64 [B, P], shown to the processors as the first P tokens of every row's text: placeholders may
            have ids outside the vocabulary, for which the loop has others. None: the texts as they come.

    Raises `UnsupportedModeError`: a processor that is known to keep state between calls.
    """

    def __init__(
        self,
        processors: Sequence[library.LogitsProcessor],
        num_rows: int,
        num_padding: Sequence[int] = (),
        prompt_ids: Int[Tensor, "B P"] | None = None,
    ) -> None:
        for processor in processors:
            _check_has_no_state(processor)
        penalties = [p for p in processors if type(p) is _PENALTY]
        is_simple = all(type(p) in (*_PATH_FREE, _PENALTY) for p in processors)
        self.is_path_free = is_simple and not penalties
        self._prompt_ids = None if self.is_path_free else prompt_ids
        is_as_given = self._prompt_ids is None  # The whole text of one row at a time is needed otherwise.
        self.ignores_padding = (
            is_as_given and bool(penalties) and is_simple and all(_ignores(p, num_padding) for p in penalties)
        )
        if self.ignores_padding:
            processors = [_PENALTY(p.penalty) if type(p) is _PENALTY else p for p in processors]
        self._processors = list(processors)
        self._num_rows = num_rows
        self._is_copied = not is_simple  # Those write to none of their arguments; others may.
        self.is_row_free = is_as_given and all(map(_is_row_free, self._processors))
        self.is_order_free = is_as_given and is_simple and all(_ignored(p) is None for p in processors)
        self.can_remove_all = not all(type(p) in _KEEPING for p in processors)

    def __call__(self, ids: Tensor, logits: Tensor, row: int) -> Tensor:
        scores = logits.to(torch.float32, copy=self._is_copied)
        if self._prompt_ids is not None:
            prompt = self._prompt_ids[row].to(ids.device)
            ids = torch.cat([prompt.expand(len(ids), -1), ids[:, len(prompt) :]], dim=1)
        for processor in self._processors:
            if isinstance(processor, BranchProcessor):
                scores = processor.of_row(ids, scores, row)
            elif _is_row_free(processor):
                scores = processor(ids, scores)  # pyright: ignore[reportArgumentType]
            else:
                scores = self._at_row(processor, row, ids, scores)
            if scores.shape != logits.shape:
                expected, got = list(logits.shape), list(scores.shape)
                raise LogitsError(f"{type(processor).__name__} must return scores of shape {expected}, got {got}")
        return scores.to(torch.float32)

    def _at_row(self, processor: library.LogitsProcessor, row: int, ids: Tensor, scores: Tensor) -> Tensor:
        """Each path at its own row of a batch, as in plain decoding."""

        def one(i: int) -> Tensor:
            batch_ids, batch_scores = (x[i].repeat(self._num_rows, 1) for x in (ids, scores))
            return processor(batch_ids, batch_scores)[row]  # pyright: ignore[reportArgumentType]

        return torch.stack([one(i) for i in range(len(ids))])


def path_processors(
    processors: Sequence[library.LogitsProcessor],
    prompts: Int[Tensor, "B P"],
    mask: Bool[Tensor, "B P"],
    vocab_size: int,
) -> PathProcessors:
    """A call's processors for the paths of its trees.

    Raises `UnsupportedModeError`: see `TreeProcessors`, `check_follows_text`.
    """
    if not processors:
        return NoProcessors()
    shown = prompts if bool((prompts >= vocab_size).any()) else None
    made = TreeProcessors(processors, len(prompts), (~mask).sum(1).tolist(), shown)
    for processor in processors:
        check_follows_text(processor, prompts, vocab_size)
    return made


def _check_has_no_state(processor: library.LogitsProcessor) -> None:
    kind = type(processor)
    if isinstance(processor, _STATEFUL):
        instead = "switch it off (guidance_scale, watermarking_config) or decode without speculation"
    elif kind.__module__.split(".")[0] in _STATEFUL_PACKAGES:
        instead = "give the grammar to treespec.grammars.GrammarProcessor instead, which follows every branch"
    else:
        return
    name = f"{kind.__module__}.{kind.__name__}"
    raise UnsupportedModeError(
        f"{name} keeps state between calls and cannot be applied along the branches of a tree; {instead}"
    )


def check_follows_text(processor: library.LogitsProcessor, ids: Int[Tensor, "B P"], vocab_size: int) -> None:
    """Ask a processor that is not known (the caller's, a newer transformers') about one text before and after others.

    One that follows its calls, instead of the text that it is given, cannot follow branches. A state that does not show
    within two tokens is not found.

    Raises `UnsupportedModeError`: other scores for the same text, or an error, which is then the cause.
    """
    kind = type(processor)
    if kind in _ROW_FREE or kind.__module__.split(".")[0] == "treespec":
        return

    def ask(*tokens: Int[Tensor, " B"]) -> Float[Tensor, "B V"]:
        text: Any = torch.cat([ids, *(token.unsqueeze(1) for token in tokens)], dim=1)
        scores: Any = torch.zeros(len(ids), vocab_size, dtype=torch.float32, device=ids.device)
        return processor(text, scores).nan_to_num()

    first = ask()
    if first.shape != (len(ids), vocab_size):
        return  # An error by name where it is applied.
    best, other = first.topk(2).indices.unbind(1)
    try:
        after = ask(best)
    except Exception:  # Plain decoding need not get to this text; where a call gets there, its own error is seen.
        return
    error = None
    if bool((first.gather(1, other.unsqueeze(1)) > torch.finfo(first.dtype).min).all()):
        with suppress(Exception):  # This one may be unknown too.
            ask(other)
    try:
        is_same = torch.equal(ask(), first) and torch.equal(ask(best), after)
    except Exception as raised:  # Whatever it raises, the same text was no error before.
        is_same, error = False, raised
    if not is_same:
        name, found = f"{kind.__module__}.{kind.__name__}", "gives the same text other scores"
        if error is not None:
            found = f"raises {type(error).__name__} ({error})"
        raise UnsupportedModeError(
            f"{name} {found} after other calls: it cannot be applied along the branches of a tree; make it a function "
            "of (input_ids, scores), or give its state as fork(), advance(token) and mask() to "
            "treespec.grammars.GrammarProcessor"
        ) from error


def _is_row_free(processor: library.LogitsProcessor) -> bool:
    # The repetition penalty of a left-padded batch has the length to ignore of each row.
    has_row_lengths = isinstance(_ignored(processor), Tensor)
    is_known = type(processor) in _ROW_FREE and not has_row_lengths
    return processor.is_row_free if isinstance(processor, BranchProcessor) else is_known


def _ignores(processor: library.LogitsProcessor, num_padding: Sequence[int]) -> bool:
    """Whether a penalty ignores the rows' left padding, and nothing else."""
    ignored = _ignored(processor)
    return isinstance(ignored, Tensor) and ignored.tolist() == list(num_padding)


def _ignored(processor: library.LogitsProcessor) -> Tensor | int | None:
    """How many of a text's first tokens a penalty ignores."""
    return getattr(processor, "prompt_ignore_length", None)
