"""Plain greedy decoding as the reference, and the comparison of another decoder's output with it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

TIE = 1e-4
"""Two logits closer than this may swap by rounding alone: passes of other shapes sum in another order."""


@dataclass(frozen=True)
class Plain:
    """One row's plain greedy continuation: tokens, and the gap between the top two logits at each of them."""

    tokens: list[int]
    gaps: list[float]


@dataclass(frozen=True)
class Agreement:
    """`position` of the first token that differs (None: identical), and whether the output is plain greedy decoding up
    to ties of plain's top two."""

    position: int | None
    is_excused: bool

    @property
    def is_identical(self) -> bool:
        return self.position is None

    @property
    def is_right(self) -> bool:
        return self.is_identical or self.is_excused


@torch.no_grad()
def plain_greedy(model: Any, inputs: dict[str, Tensor], num_new: int, **options: Any) -> Plain:
    """Plain `generate` of one prompt, int64 [1, P]; gaps are those of the processed scores."""
    settings = {"do_sample": False, "return_dict_in_generate": True, "output_scores": True, **options}
    out = model.generate(**inputs, max_new_tokens=num_new, **settings)
    top = torch.cat(out.scores).float().topk(2).values
    return Plain(out.sequences[0, inputs["input_ids"].shape[1] :].tolist(), (top[:, 0] - top[:, 1]).tolist())


def compare(model: Any, prompt_ids: Tensor, plain: Plain, output: Sequence[int], tie: float = TIE) -> Agreement:
    """Compare `output`, the new tokens of the prompt int64 [P]: identical, or different only where plain had a tie.

    After a tie the texts differ, so the rest of the output is checked against plain logits of its own prefix: every
    token must be the most likely one there, again up to a tie.
    """
    output = list(output)
    length = min(len(output), len(plain.tokens))
    position = next((i for i in range(length) if output[i] != plain.tokens[i]), None)
    if position is None:
        is_same_length = len(output) == len(plain.tokens)
        return Agreement(None if is_same_length else length, False)
    return Agreement(position, plain.gaps[position] <= tie and largest_shortfall(model, prompt_ids, output) <= tie)


@torch.no_grad()
def largest_shortfall(model: Any, prompt_ids: Tensor, output: Sequence[int]) -> float:
    """By how much an output token's plain logit falls short of the largest one, at worst."""
    new = torch.tensor(output, device=prompt_ids.device)
    logits = model(torch.cat([prompt_ids, new])[None], logits_to_keep=len(output) + 1).logits[0, :-1].float()
    return float((logits.amax(-1) - logits.gather(1, new[:, None])[:, 0]).max())
