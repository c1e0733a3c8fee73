"""transformers' `prefix_allowed_tokens_fn` along the branches of a tree."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from transformers.generation.logits_process import LogitsProcessor, PrefixConstrainedLogitsProcessor

from treespec.hf.generation.grammar import PathStates, resized
from treespec.hf.generation.grammar_states import mask_of

Function = Callable[[int, Tensor], Iterable[int]]


class PrefixProcessor(LogitsProcessor):
    """`PrefixConstrainedLogitsProcessor` for the paths of a call: the function is asked once for every text.

    It is asked about texts only that it allows itself.

    Args:
        function: from a row of the caller's batch and its text int64 [L] to the tokens that may come next.
        prompts: int64 [B, P].
    """

    def __init__(self, function: Function, prompts: Int[Tensor, "B P"]) -> None:
        self._num_prompt = prompts.shape[1]
        self._rows = [PathStates(PrefixState(function, row, prompt)) for row, prompt in enumerate(prompts)]

    def __call__(self, ids: Tensor, scores: Tensor, row: int) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Scores [M, V] after texts int64 [M, L] of one row, -inf where the function forbids a token.

        Where the processors before left none of the allowed tokens, all of these get 0, as in the library.
        """
        masks = [resized(self.allowed(row, text), scores.shape[-1]) for text in ids[:, self._num_prompt :].tolist()]
        allowed = torch.stack(masks).to(scores.device)
        kept = scores.masked_fill(~allowed, -torch.inf)
        is_left_without = (kept.amax(-1, keepdim=True) == -torch.inf) & allowed
        return kept.masked_fill(is_left_without, 0.0)

    def allowed(self, row: int, tokens: Sequence[int]) -> Tensor | None:
        """See `Constraint`."""
        return self._rows[row].mask(tuple(tokens))


@dataclass
class PrefixState:
    """A `GrammarState` by a `prefix_allowed_tokens_fn`."""

    function: Function
    row: int
    prompt: Tensor
    tokens: tuple[int, ...] = ()

    def fork(self) -> "PrefixState":
        return PrefixState(self.function, self.row, self.prompt, self.tokens)

    def advance(self, token: int) -> None:
        self.tokens = (*self.tokens, token)

    def mask(self) -> Tensor:
        text = torch.cat([self.prompt, self.prompt.new_tensor(self.tokens)])
        return mask_of(self.function(self.row, text))


def along_branches(processors: Iterable[Any], prompts: Int[Tensor, "B P"]) -> list[Any]:
    """The processors of a call, prefix functions as `PrefixProcessor`."""

    def of(processor: Any) -> Any:
        if type(processor) is not PrefixConstrainedLogitsProcessor or processor._num_beams != 1:
            return processor
        return PrefixProcessor(processor._prefix_allowed_tokens_fn, prompts)  # pyright: ignore[reportArgumentType]

    return [of(processor) for processor in processors]
