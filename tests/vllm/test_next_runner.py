"""A sketch of trees in vLLM's V2 model runner, over its public classes, and what of it was run.

V2 calls a `BaseSpeculator` for drafts and a rejection sampler for verification; both are objects of the runner, so that
nothing is subclassed but these. The trees stay in the process, as drafts of V2 are one table of tokens per batch.

Run, here: drafting and verification over V2's classes, on a toy target, whose logits depend on the last token. Never
run: V2 itself, which refuses to start without Triton and so on CPUs; there the speculator reads the texts from
`req_states.all_token_ids`, positions and slots of scratch segments are replaced after `prepare_inputs`, and attention
builders are those of `with_segments`, as in V1.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("vllm.config")

from vllm.v1.worker.gpu.sample.output import SamplerOutput
from vllm.v1.worker.gpu.spec_decode.speculator import BaseSpeculator

from treespec.tree import TreeBatch, Verdict
from treespec.verification.dense.forms import follow_picks
from treespec.vllm import Options
from treespec.vllm.drafting import Drafting, ServedRow
from treespec.vllm.drafts import NO_TOKEN, Draft, as_drafts, scheduled_trees

VOCAB, WIDTH = 12, 7


class TreeSpeculator(BaseSpeculator):
    """Drafts trees for the requests of a batch, and verifies them in place of the rejection sampler, greedily."""

    supports_mm_inputs = False
    draft_logits = None

    def __init__(self, options: Options, texts: dict[str, list[int]]) -> None:
        self.drafting, self.texts = Drafting(options, VOCAB), texts
        self.drafts: dict[str, Draft] = {}
        self.step: tuple[TreeBatch, Sequence[Verdict], Tensor, list[int]] | None = None

    def init_cudagraph_manager(self, cudagraph_mode: Any) -> None:
        """The target's graphs are piecewise; drafts have none."""

    def capture(self) -> None:
        """Nothing to capture."""

    def verify(self, logits: Tensor, input_batch: Any, *args: Any) -> SamplerOutput:
        """`RejectionSampler.__call__`: the emitted tokens [B, K + 1], from the logits of all nodes [M, V]."""
        counts = input_batch.num_draft_tokens_per_req
        scheduled = [input_batch.drafted[row, :count].tolist() for row, count in enumerate(counts)]
        roots = [self.texts[name][-1] for name in input_batch.req_ids]
        trees = scheduled_trees([self.drafts.get(name) for name in input_batch.req_ids], roots, scheduled)
        starts = input_batch.cu_num_logits_np[:-1, None]
        numbers = np.where(trees.parents.numpy() >= -1, starts + np.arange(trees.max_nodes), 0)
        verdicts = follow_picks(trees, logits.argmax(-1).numpy()[numbers].tolist())
        self.step = trees, verdicts, logits, starts[:, 0].tolist()
        emitted = torch.full((len(verdicts), WIDTH + 1), NO_TOKEN)
        for row, verdict in enumerate(verdicts):
            tokens = [*trees.tokens[row, list(verdict.path[1:])].tolist(), verdict.next_token]
            emitted[row, : len(tokens)] = torch.tensor(tokens)
        num_sampled = torch.tensor([len(verdict.path) for verdict in verdicts])
        return SamplerOutput(emitted, None, None, num_sampled, torch.as_tensor(counts) + 1 - num_sampled)

    def propose(self, input_batch: Any, *args: Any, num_speculative_tokens: int | None = None, **rest: Any) -> Tensor:
        """The draft tokens [B, K] of trees in depth-first order, `NO_TOKEN` after them."""
        assert self.step is not None, "verified before"
        trees, verdicts, logits, starts = self.step
        rows = [
            ServedRow(name, row, verdicts[row], emitted, lambda text=text: text, len(text), 100)
            for row, (name, emitted) in enumerate(zip(input_batch.req_ids, input_batch.emitted, strict=True))
            for text in [self.texts[name]]
        ]
        self.drafting.update(rows, trees, logits, starts)
        proposed = self.drafting.propose(rows)
        self.drafts = dict(zip(input_batch.req_ids, as_drafts(proposed, [0] * len(rows)), strict=True))
        table = torch.full((len(rows), num_speculative_tokens or WIDTH), NO_TOKEN)
        for row, name in enumerate(input_batch.req_ids):
            tokens = self.drafts[name].tokens[1:]
            table[row, : len(tokens)] = torch.tensor(tokens)
        return table


def test_batches_of_v2_are_drafted_and_verified_as_trees() -> None:
    rng = np.random.default_rng(0)
    target = torch.tensor(rng.normal(size=(VOCAB, VOCAB)), dtype=torch.float32)
    texts = {f"r{row}": rng.integers(0, VOCAB, 5).tolist() for row in range(3)}
    greedy = {name: list(text) for name, text in texts.items()}
    speculator = TreeSpeculator(Options(WIDTH, "recycling", WIDTH + 1), texts)
    drafted, num_steps, num_branches = torch.full((3, WIDTH), NO_TOKEN), 12, 0
    for _ in range(num_steps):
        names, counts = list(texts), (drafted != NO_TOKEN).sum(1).numpy()
        nodes = [
            [texts[name][-1], *drafted[row, : counts[row]].tolist()] for row, name in enumerate(names)
        ]  # A node's logits follow from its token.
        starts = np.cumsum([0, *map(len, nodes)])
        batch = SimpleNamespace(
            req_ids=names, num_draft_tokens_per_req=counts, drafted=drafted, cu_num_logits_np=starts, emitted=[]
        )
        output = speculator.verify(target[torch.tensor([token for row in nodes for token in row])], batch)
        for row, name in enumerate(names):
            batch.emitted.append(output.sampled_token_ids[row, : output.num_sampled[row]].tolist())
            texts[name] += batch.emitted[-1]
        drafted = speculator.propose(batch, num_speculative_tokens=WIDTH)
        trees = next(iter(speculator.drafts.values())).trees
        num_branches += int(((trees.parents[:, 1:] != trees.parents[:, :-1] + 1) & (trees.parents[:, 1:] >= 0)).sum())
    for name, text in texts.items():
        while len(greedy[name]) < len(text):
            greedy[name].append(int(target[greedy[name][-1]].argmax()))
        assert text == greedy[name]
        assert len(text) > 5 + 2 * num_steps
    assert num_branches > 10
