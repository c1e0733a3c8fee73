"""From a step's logits to its verdicts, and from these to what vLLM expects of a sampler."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from vllm.v1.outputs import LogprobsTensors, SamplerOutput

from treespec.tree import PADDING_PARENT, TreeBatch, Verdict
from treespec.verification import resolve
from treespec.verification.dense.forms import follow_picks, has_dense_form
from treespec.vllm.drafts import NO_TOKEN
from treespec.vllm.layout import Step
from treespec.vllm.scores import LEAST_TEMPERATURE, Outputs, path_scores, target_probs
from treespec.vllm.streams import Streams
from treespec.vllm.verifying import FlatProbs, verify_sampled


class StepVerifier:
    """Verifies the trees of a batch whose requests have different parameters."""

    def __init__(self, verification: str, streams: Streams, sampler: Any) -> None:
        self._verification, self._streams, self._sampler = verification, streams, sampler

    def verify(self, trees: TreeBatch, logits: Tensor, requests: Outputs, sampling: Any) -> list[Verdict]:
        """One verdict per request; `sampling` is vLLM's of the batch.

        Raises `RuleMismatchError`: the rule cannot verify these trees.
        """
        scores = path_scores(logits, trees, requests, self._sampler, sampling)
        starts, nodes = np.array(requests.starts)[:, None], np.arange(trees.max_nodes)
        numbers = np.where(trees.parents.numpy() != PADDING_PARENT, starts + nodes, 0)
        is_sampled = [param.temperature >= LEAST_TEMPERATURE for param in requests.params]
        sampled = np.flatnonzero(is_sampled & ~requests.is_discarded).tolist()  # Chunks of prompts emit nothing.
        verdicts: dict[int, Verdict] = {}
        if len(sampled) < trees.num_rows:
            best = self._sampler.greedy_sample(scores.float()).cpu().numpy()[numbers]
            verdicts = dict(enumerate(follow_picks(trees, best.tolist())))
        if sampled:
            found = self._sample(trees.select_rows(sampled), scores, numbers[sampled], sampled, requests, sampling)
            verdicts |= zip(sampled, found, strict=True)
        return [verdicts[row] for row in range(trees.num_rows)]

    def _sample(
        self, trees: TreeBatch, scores: Tensor, numbers: np.ndarray, rows: list[int], requests: Outputs, sampling: Any
    ) -> list[Verdict]:
        device, min_p = scores.device, [param.min_p for param in requests.params]
        least = torch.tensor(min_p, dtype=torch.float32, device=device) if any(min_p) else None
        as_probs = partial(target_probs, sampling=sampling, min_p=least)
        target = FlatProbs(scores, torch.from_numpy(numbers).to(device), torch.tensor(rows, device=device), as_probs)
        rule = resolve(self._verification, True, trees)
        lengths, seeds = [len(requests.outputs[row]) for row in rows], [requests.params[row].seed for row in rows]
        # A rule with a dense form draws at most one token per depth: after the path's nodes, or only at its end.
        coins, draws = self._streams.uniforms(trees, seeds, lengths, has_dense_form(rule))
        return verify_sampled(rule, trees, target, coins, draws)


def gather_output(step: Step, logits: Tensor, width: int, sampler: Any, sampling: Any) -> SamplerOutput:
    """The emitted tokens, int32 [B, width] filled up with `NO_TOKEN`; each one's logprobs from its parent's logits."""
    tokens = np.full((len(step.verdicts), width), NO_TOKEN, dtype=np.int32)
    numbers = np.zeros(tokens.shape, dtype=np.int64)
    for row, (verdict, nodes) in enumerate(zip(step.verdicts, step.trees.tokens.numpy(), strict=True)):
        path, count = list(verdict.path), len(verdict.path)
        tokens[row, : count - 1] = nodes[path[1:]]
        tokens[row, count - 1] = verdict.next_token
        numbers[row, :count] = np.array(path) + step.starts[row]
    emitted = torch.from_numpy(tokens).to(logits.device)
    if (number := sampling.max_num_logprobs) is None:
        return SamplerOutput(sampled_token_ids=emitted, logprobs_tensors=None)
    chosen = logits[torch.from_numpy(numbers.flatten()).to(logits.device)]
    is_logits = sampler.logprobs_mode == "raw_logits"
    logprobs = chosen.float() if is_logits else sampler.compute_logprobs(chosen)
    if number == -1:  # Those of the whole vocabulary.
        nothing = torch.empty(0, dtype=torch.float32, device="cpu")
        return SamplerOutput(emitted, LogprobsTensors(nothing, logprobs, nothing))
    return SamplerOutput(emitted, sampler.gather_logprobs(logprobs, number, emitted.flatten().clamp(min=0).long()))
