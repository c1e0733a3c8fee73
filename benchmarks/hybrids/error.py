"""How much rounding a tree pass adds, by depth, compared with the model's own passes.

A chain behind a prompt is scored by tree passes, alone and with siblings between its nodes, by the model's own pass
over the whole text, and by its own passes over single tokens. Differences are root mean squares over logits, in
standard deviations of the logits: from the passes over single tokens, which plain decoding makes, and from passes in
float64. Texts are few and bfloat16 coarse: there the ratios of another seed are others, on both sides of 1.
transformers computes recurrences in float32 whatever the model's dtype: in the reference these are float64 too.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from transformers import PreTrainedModel

from benchmarks.hybrids.models import own_passes
from treespec.hf.recurrent.scorer import StateScorer

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
WAYS = ("chain", "tree", "whole text", "single tokens")
PROMPT = 40
DEPTHS = ((1, 4), (5, 16), (17, 48))
"""First and last ones that are taken together: one depth of a few texts says little."""
SIBLING_EVERY = 3
COMPARED = {"single tokens": WAYS[:3], "float64": WAYS}
"""By reference the passes that are compared with it."""
Errors = dict[str, dict[str, dict[str, list[float]]]]


@contextmanager
def all_in_float64() -> Iterator[None]:
    """Inside nothing is rounded to float32."""
    double = torch.float64
    with (
        mock.patch.object(torch, "float32", double),
        mock.patch.object(torch, "float", double),
        mock.patch.object(Tensor, "float", Tensor.double),
    ):
        yield


@torch.no_grad()
def passes(model: PreTrainedModel, ids: Tensor) -> dict[str, Tensor]:
    """The logits [depth, V] of the tokens behind the prompt, by way."""
    prompt, chain = ids[:, :PROMPT], ids[:, PROMPT:]
    by_trees = [_scored(model, prompt, chain, every) for every in (chain.shape[1] + 1, SIBLING_EVERY)]
    whole = model(ids, use_cache=False).logits[0, PROMPT:]
    run = own_passes(model, prompt)
    single = torch.cat([run(token) for token in chain.split(1, 1)], 1)[0]
    return dict(zip(WAYS, (*by_trees, whole, single), strict=True))


def _scored(model: PreTrainedModel, prompt: Tensor, chain: Tensor, every: int) -> Tensor:
    """The logits of a chain's nodes in a tree where one node in `every` has a sibling, [depth, V]."""
    tokens, parents, path = [], [], []
    for depth, token in enumerate(chain[0].tolist(), start=1):
        parents += [path[-1] if path else -1] * (1 + (depth % every == 0))
        path.append(len(tokens))
        tokens += [token, token ^ 1][: len(parents) - len(tokens)]
    scorer = StateScorer(model)
    scorer.prefill(prompt, torch.ones_like(prompt, dtype=torch.bool))
    return scorer.extend(torch.tensor([tokens]), torch.tensor([parents])).logits[0, path]


@torch.no_grad()
def errors(model: Any, num_texts: int, seed: int) -> Errors:
    """By dtype, reference and way the differences at `DEPTHS`, over all texts."""
    exact: Any = deepcopy(model).double()
    rounded: dict[str, Any] = {dtype: deepcopy(model).to(number) for dtype, number in DTYPES.items()}
    generator = torch.Generator().manual_seed(seed)
    squares: dict[tuple[str, str, str], list[Tensor]] = {}
    for _ in range(num_texts):
        ids = torch.randint(3, 512, (1, PROMPT + DEPTHS[-1][1]), generator=generator)
        with all_in_float64():
            expected = exact(ids, use_cache=False).logits[0, PROMPT:]
        for dtype, rounding in rounded.items():
            logits = passes(rounding, ids) | {"float64": expected}
            for reference, ways in COMPARED.items():
                for way in ways:
                    found = _mean_squares(logits[way], logits[reference])
                    squares.setdefault((dtype, reference, way), []).append(found)
    return {
        dtype: {
            reference: {way: torch.stack(squares[dtype, reference, way]).mean(0).sqrt().tolist() for way in ways}
            for reference, ways in COMPARED.items()
        }
        for dtype in DTYPES
    }


def _mean_squares(logits: Tensor, others: Tensor) -> Tensor:
    """The mean squares of the differences at `DEPTHS`, in variances of the logits."""
    by_depth = (logits.double() - others.double()).square().mean(1) / others.double().var()
    return torch.stack([by_depth[first - 1 : last].mean() for first, last in DEPTHS])
