"""The target's scores after every node, processed as if each node were a request whose output ends with its path.

In vLLM's own order: allowed tokens, bad words, min tokens, logit bias, penalties; then, for sampling, temperature,
min-p, top-k and top-p. vLLM's sampler does all but what it leaves out for speculative decoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from vllm.v1.sample.logits_processor import LogitsProcessors
from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p

from treespec.tree import TreeBatch

LEAST_TEMPERATURE = 1e-5
"""Below it vLLM decodes greedily."""
_BY_REQUEST = (
    "frequency_penalties",
    "presence_penalties",
    "repetition_penalties",
    "prompt_token_ids",
    "allowed_token_ids_mask",
)


@dataclass(frozen=True)
class Outputs:
    """A step's B requests: vLLM's names of them, sampling parameters, the output so far, the row of the first node's
    logits, and bool [B], which of them are still reading their prompt."""

    names: Sequence[str]
    params: Sequence[Any]
    outputs: Sequence[Sequence[int]]
    starts: Sequence[int]
    is_discarded: np.ndarray


def reads_path(params: Any) -> bool:
    """Whether a request's scores depend on more than its logits."""
    has_penalty = params.presence_penalty or params.frequency_penalty or params.repetition_penalty != 1
    return bool(has_penalty or params.bad_words or params.allowed_token_ids or params.logit_bias or params.min_tokens)


def path_scores(
    logits: Float[Tensor, "M V"], trees: TreeBatch, requests: Outputs, sampler: Any, sampling: Any
) -> Float[Tensor, "M V"]:
    """Processed scores after every node; those of requests without processors are the logits themselves."""
    chosen = [row for row, params in enumerate(requests.params) if reads_path(params)]
    if not chosen:
        return logits
    scores = logits.to(torch.float32, copy=True)
    owners, outputs, numbers = [], [], []
    for row in chosen:
        paths = trees.trees[row].token_paths
        owners += [row] * len(paths)
        outputs += [[*requests.outputs[row], *path] for path in paths]
        numbers += range(requests.starts[row], requests.starts[row] + len(paths))
    index = torch.tensor(numbers, device=scores.device)
    part = scores[index]
    _apply(part, owners, outputs, requests.params, sampler, sampling)
    scores[index] = part
    return scores


def target_probs(
    scores: Float[Tensor, "M V"], owners: Int[Tensor, "M"], sampling: Any, min_p: Float[Tensor, "B"] | None
) -> Float[Tensor, "M V"]:
    """Distributions under the requests' temperature, min-p, top-k and top-p; `owners` are the rows' requests."""
    temperature = sampling.temperature[owners].unsqueeze(1)
    scores = scores.float() / torch.where(temperature < LEAST_TEMPERATURE, 1.0, temperature)
    if min_p is not None:
        probs = scores.softmax(-1)
        least = probs.amax(-1, keepdim=True) * min_p[owners].unsqueeze(1)
        scores = scores.masked_fill(probs < least, -torch.inf)
    top_k, top_p = (None if values is None else values[owners] for values in (sampling.top_k, sampling.top_p))
    return apply_top_k_top_p(scores, top_k, top_p).softmax(-1)


def _apply(
    scores: Tensor, owners: list[int], outputs: list[list[int]], params: Sequence[Any], sampler: Any, sampling: Any
) -> None:
    """vLLM's processors in its order, in place; min tokens and logit bias stand before the penalties."""
    index = torch.tensor(owners, device=scores.device)
    by_row = {name: None if (v := getattr(sampling, name)) is None else v[index] for name in _BY_REQUEST}
    known = sampling.bad_words_token_ids
    bad_words = {row: known[owner] for row, owner in enumerate(owners) if owner in known}
    processor = _MinTokensAndBias([params[owner] for owner in owners], list(map(len, outputs)))
    others = {"bad_words_token_ids": bad_words, "output_token_ids": outputs}
    sampling = replace(sampling, **by_row, **others, logitsprocs=LogitsProcessors([processor]))
    result = sampler.apply_logits_processors(scores, sampling, False)
    if result is not scores:
        scores.copy_(result)


class _MinTokensAndBias:
    """vLLM's processors of these names, for nodes in place of requests."""

    def __init__(self, params: Sequence[Any], lengths: Sequence[int]) -> None:
        self._rows = list(zip(params, lengths, strict=True))

    def is_argmax_invariant(self) -> bool:
        return False

    def apply(self, scores: Tensor) -> Tensor:
        for row, (params, length) in enumerate(self._rows):
            if length < params.min_tokens and params.all_stop_token_ids:
                scores[row, list(params.all_stop_token_ids)] = -torch.inf
        for row, (params, _) in enumerate(self._rows):
            if params.logit_bias:
                tokens, values = zip(*params.logit_bias.items(), strict=True)
                scores[row, list(tokens)] += torch.tensor(values, dtype=torch.float32, device=scores.device)
        return scores
