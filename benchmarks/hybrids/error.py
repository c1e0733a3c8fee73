"""How much rounding a tree pass adds, by depth, compared with the model's own passes.

One chain behind a prompt is scored by a tree pass, by the model's own pass over the whole text, and by its own passes
over single tokens. Errors are largest differences from passes in float64, in standard deviations of the logits.
transformers computes recurrences in float32 whatever the model's dtype: in the reference these are float64 too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from transformers import PreTrainedModel

from benchmarks.hybrids.models import KINDS, by_kind, own_passes
from treespec.hf.recurrent.scorer import StateScorer

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
WAYS = ("tree", "whole text", "single tokens")
PROMPT, DEPTHS = 40, (1, 4, 16, 48)
Errors = dict[str, dict[str, list[float]]]


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
    scorer = StateScorer(model)
    scorer.prefill(prompt, torch.ones_like(prompt, dtype=torch.bool))
    tree = scorer.extend(chain, torch.arange(-1, chain.shape[1] - 1)[None]).logits[0]
    whole = model(ids, use_cache=False).logits[0, PROMPT:]
    run = own_passes(model, prompt)
    single = torch.cat([run(token) for token in chain.split(1, 1)], 1)[0]
    return dict(zip(WAYS, (tree, whole, single), strict=True))


@torch.no_grad()
def errors(model: Any, num_texts: int, seed: int) -> Errors:
    """By dtype and way the mean over texts of the largest error at each of `DEPTHS`."""
    exact: Any = deepcopy(model).double()
    generator = torch.Generator().manual_seed(seed)
    found: dict[str, dict[str, list[Tensor]]] = {dtype: {way: [] for way in WAYS} for dtype in DTYPES}
    for _ in range(num_texts):
        ids = torch.randint(3, 512, (1, PROMPT + max(DEPTHS)), generator=generator)
        with all_in_float64():
            expected = exact(ids, use_cache=False).logits[0, PROMPT:]
        for dtype, number in DTYPES.items():
            rounded: Any = deepcopy(model)
            for way, logits in passes(rounded.to(number), ids).items():
                found[dtype][way].append((logits.double() - expected).abs().amax(1) / expected.std())
    at = torch.tensor(DEPTHS) - 1
    return {
        dtype: {way: torch.stack(texts).mean(0)[at].tolist() for way, texts in ways.items()}
        for dtype, ways in found.items()
    }


def measure(size: int, num_layers: int, num_texts: int, seed: int) -> dict[str, Any]:
    """By kind, dtype and way the errors at each depth."""
    return by_kind(partial(errors, num_texts=num_texts, seed=seed), KINDS, size, num_layers, seed)
