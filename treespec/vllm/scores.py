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
from vllm.v1.sample.logits_processor import (
    BatchUpdate,
    LogitBiasLogitsProcessor,
    LogitsProcessors,
    MinTokensLogitsProcessor,
)
from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p

from treespec.tree import TreeBatch

LEAST_TEMPERATURE = 1e-5  # Below it vLLM decodes greedily.
_BY_REQUEST = (
    "frequency_penalties",
    "presence_penalties",
    "repetition_penalties",
    "prompt_token_ids",
    "allowed_token_ids_mask",
)


@dataclass(frozen=True)
class Outputs:
    """A step's B requests: sampling parameters, the output so far, the row of the first node's logits, and bool [B],
    which of them are still reading their prompt."""

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
    scores = logits.to(torch.float32, copy=True)  # Logprobs and drafters read the raw ones.
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
    """vLLM's processors, in place."""
    index = torch.tensor(owners, device=scores.device)
    by_row = {name: None if (v := getattr(sampling, name)) is None else v[index] for name in _BY_REQUEST}
    known = sampling.bad_words_token_ids
    bad_words = {row: known[owner] for row, owner in enumerate(owners) if owner in known}
    others = {"bad_words_token_ids": bad_words, "output_token_ids": outputs}
    processors = _processors([params[owner] for owner in owners], outputs, scores.device)
    sampling = replace(sampling, **by_row, **others, logitsprocs=processors)
    result = sampler.apply_logits_processors(scores, sampling, False)
    if result is not scores:
        scores.copy_(result)


def _processors(params: Sequence[Any], outputs: Sequence[list[int]], device: torch.device) -> LogitsProcessors:
    """vLLM's own of min tokens and logit bias, in its order, with nodes in place of requests."""
    added = [(row, own, None, output) for row, (own, output) in enumerate(zip(params, outputs, strict=True))]
    made = MinTokensLogitsProcessor(None, device, False), LogitBiasLogitsProcessor(None, device, False)
    for processor in made:
        processor.update_state(BatchUpdate(len(added), removed=(), added=added, moved=()))
    return LogitsProcessors(made)
