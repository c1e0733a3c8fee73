"""transformers' `prefix_allowed_tokens_fn` along the branches of a tree."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from transformers.generation.logits_process import PrefixConstrainedLogitsProcessor

from treespec.grammars.processor import Constraint, PathStates, resized
from treespec.grammars.states import GrammarState, mask_of

Function = Callable[[int, Tensor], Iterable[int]]


class PrefixProcessor(Constraint):
    """`PrefixConstrainedLogitsProcessor` for the paths of a call: the function is asked once for every text.

    It is asked about texts only that it allows itself, or that hold a token which other processors force against it.

    Args:
        function: from a row of the caller's batch and its text int64 [L] to the tokens that may come next.
        prompts: int64 [B, P].
    """

    def __init__(self, function: Function, prompts: Int[Tensor, "B P"]) -> None:
        self._num_prompt = prompts.shape[1]
        self._starts = [PrefixState(function, row, prompt) for row, prompt in enumerate(prompts)]
        self._rows = [PathStates(start) for start in self._starts]
        self._errors: list[dict[tuple[int, ...], Exception]] = [{} for _ in prompts]

    def of_row(self, ids: Tensor, scores: Tensor, row: int) -> Tensor:
        """Scores [M, V] after texts int64 [M, L] of one row, -inf where the function forbids a token.

        Where the processors before left none of the allowed tokens, all of these get 0, as in the library.
        """
        texts = map(tuple, ids[:, self._num_prompt :].tolist())
        masks = [resized(self._mask(row, text), scores.shape[-1]) for text in texts]
        allowed = torch.stack(masks).to(scores.device)
        kept = scores.masked_fill(~allowed, -torch.inf)
        is_left_without = (kept.amax(-1, keepdim=True) == -torch.inf) & allowed
        return kept.masked_fill(is_left_without, 0.0)

    def allowed(self, row: int, tokens: Sequence[int]) -> Tensor | None:
        """See `Constraint`."""
        return self._rows[row].mask(tuple(tokens))

    def follow(self, row: int, emitted: tuple[int, ...]) -> None:
        """Record what a row has emitted, also where the function forbade it; its errors on the way there come now."""
        for text, error in self._errors[row].items():
            if len(text) < len(emitted) and text == emitted[: len(text)]:
                raise error
        self._rows[row].follow(emitted)

    def _mask(self, row: int, tokens: tuple[int, ...]) -> Tensor | None:
        """The mask after tokens that may be drafted; None where the function does not know a text that it forbids."""
        mask = self._rows[row].mask(tokens)
        if mask is not None:
            return mask
        try:
            return replace(self._starts[row], tokens=tokens).mask()
        except Exception as error:  # A branch that plain decoding hardly reaches: `follow` knows whether it does.
            self._errors[row][tokens] = error
            return None


@dataclass
class PrefixState(GrammarState):
    """A `GrammarState` by a `prefix_allowed_tokens_fn`."""

    function: Function
    row: int
    prompt: Tensor
    tokens: tuple[int, ...] = ()

    def advance(self, token: int) -> None:
        self.tokens = (*self.tokens, token)

    def mask(self) -> Tensor:
        text = torch.cat([self.prompt, self.prompt.new_tensor(self.tokens)])
        return mask_of(self.function(self.row, text))


def along_branches(processors: Iterable[Any], prompts: Int[Tensor, "B P"]) -> list[Any]:
    """The processors of a call, prefix functions as `PrefixProcessor`."""
    return [
        PrefixProcessor(one._prefix_allowed_tokens_fn, prompts)
        if type(one) is PrefixConstrainedLogitsProcessor and one._num_beams == 1
        else one
        for one in processors
    ]
