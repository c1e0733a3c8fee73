"""Trees in vLLM's V1 model runner: what is laid out before a pass, verified after it, and drafted for the next one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor
from vllm.distributed.parallel_state import get_tp_group
from vllm.envs import VLLM_LOG_STATS_INTERVAL
from vllm.v1.outputs import SamplerOutput

from treespec.tree import TreeBatch, Verdict
from treespec.tree.transfer import upload
from treespec.vllm.attention import PassSegments
from treespec.vllm.drafting import Drafting, ServedRow, flat_step
from treespec.vllm.drafts import NO_TOKEN, Draft, first_chains, first_nodes
from treespec.vllm.heads import ServedHead
from treespec.vllm.layout import Step, lay_out
from treespec.vllm.pages import OnPages
from treespec.vllm.plugin import options_of
from treespec.vllm.readers import load_reader
from treespec.vllm.scheduler import num_scratch_blocks
from treespec.vllm.scores import Outputs, reads_path
from treespec.vllm.segments import scratch_blocks, without_room
from treespec.vllm.stats import ServingStats, logger
from treespec.vllm.step import StepVerifier, gather_output
from treespec.vllm.streams import Streams
from treespec.vllm.supported import check_backends, check_cache, refuse, why_chains


class TreeRunner:
    """Mixin placed before vLLM's runner in the MRO. Everything read from `self` but not set in `__init__` is vLLM's.

    Under tensor parallelism the first rank drafts, as measured times decide what is drafted, and every rank verifies:
    all of them have the same logits, drafts and random numbers.
    """

    def __init__(self: Any, vllm_config: Any, device: torch.device) -> None:
        super().__init__(vllm_config, device)  # pyright: ignore[reportCallIssue]
        self._tree_options = options_of(self.vllm_config)
        # Where a reasoning parser decides at which token a grammar begins, masks are vLLM's, of chains.
        self._masks_chains = bool(self.vllm_config.structured_outputs_config.reasoning_parser)
        streams = Streams(self.model_config.seed or 0)
        self._verifier = StepVerifier(self._tree_options.verification, streams, self.sampler)
        self._draft_ms = 0.0
        self._last: tuple[float, set[str], int] = 0.0, set(), 0
        self._drafts: dict[str, Draft] = {}
        self._step: Step | None = None
        self.stats = ServingStats()

    def load_model(self: Any, *args: Any, **kwargs: Any) -> None:
        """vLLM's; then the head, whose hidden states the model is to return, or the draft model."""
        super().load_model(*args, **kwargs)  # pyright: ignore[reportAttributeAccessIssue]
        ranks = get_tp_group()
        reader = load_reader(self._tree_options, self.get_model(), self.vllm_config, self.device, ranks)
        if isinstance(reader, ServedHead):
            self.use_aux_hidden_state_outputs = True
        self._reader = reader if ranks.is_first_rank else None

    def initialize_kv_cache(self: Any, kv_cache_config: Any, *args: Any, **kwargs: Any) -> None:
        """vLLM's; then the last blocks are the scratch blocks."""
        super().initialize_kv_cache(kv_cache_config, *args, **kwargs)  # pyright: ignore[reportAttributeAccessIssue]
        why = why_chains(self.vllm_config, self.kv_cache_config)
        self._drafts_chains = why is not None
        if self._drafts_chains:
            logger.warning("treespec drafts chains, the first of each tree, as %s", why)
            refuse(isinstance(self._reader, OnPages), f"a head here, as {why}: leave head out")
        else:
            check_cache(self.kv_cache_config, self._kernel_block_sizes)
            check_backends(group.backend for groups in self.attn_groups for group in groups)
        num_blocks = self.kv_cache_config.num_blocks
        num_scratch = num_scratch_blocks(self.vllm_config, self.kv_cache_config)
        self._scratch = np.arange(num_blocks - num_scratch, num_blocks)
        if isinstance(self._reader, OnPages):
            self._reader.make_pages(num_blocks, self._kernel_block_sizes[0])
        if get_tp_group().is_first_rank:
            sizes = self.model_config.get_vocab_size(), self.model_config.seed or 0
            kind = self.device.type == "cpu", self._drafts_chains
            self._drafting = Drafting(self._tree_options, *sizes, self._reader, *kind)

    def _prepare_inputs(self: Any, scheduler_output: Any, num_scheduled_tokens: np.ndarray) -> Any:
        """vLLM's; then the step's trees are laid out."""
        result = super()._prepare_inputs(scheduler_output, num_scheduled_tokens)  # pyright: ignore[reportAttributeAccessIssue]
        self._lay_out(scheduler_output.scheduled_spec_decode_tokens, num_scheduled_tokens.astype(np.int64))
        return result

    def _lay_out(self: Any, drafted: Mapping[str, Sequence[int]], counts: np.ndarray) -> None:
        """Replace positions and slots of nodes in scratch segments; see `lay_out`."""
        self._step = lay_out(self.input_batch, drafted, counts, self._drafts, self._scratch)
        plan = self._step.plan
        if plan is not None and plan.has_segments:
            arrays = map(torch.from_numpy, (plan.moves, plan.block_copies, plan.rewrites))
            (tokens, positions, slots), copies, rewrites = upload(self.device, *arrays)
            slot_mapping = self.input_batch.block_table[0].slot_mapping.gpu
            self.positions[tokens] = positions.to(self.positions.dtype)
            slot_mapping[tokens] = slots.to(slot_mapping.dtype)
            self._set_segments(PassSegments(plan, int(counts.sum()), copies, rewrites))

    def _set_segments(self: Any, segments: PassSegments | None) -> None:
        """Give the attention of the next pass its segments."""
        for group in (group for groups in self.attn_groups for group in groups):
            group.get_metadata_builder().segments = segments

    def _sample(self: Any, logits: Tensor, spec_decode_metadata: Any) -> SamplerOutput:
        """Verify trees, in place of vLLM's verification of chains; greedy steps without any are vLLM's own."""
        step, batch, metadata = self._step, self.input_batch, spec_decode_metadata
        batch.generators.clear()  # Seeds have `Streams`; vLLM would set back these after a chunk, which a CPU's cannot.
        requests = [self.requests[request] for request in batch.req_ids[: batch.num_reqs]]
        params, sampling = [request.sampling_params for request in requests], batch.sampling_metadata
        step.logits, step.starts = logits, list(accumulate((n + 1 for n in metadata.num_draft_tokens[:-1]), initial=0))
        if step.plan is None and sampling.all_greedy and not any(map(reads_path, params)):
            return self.sampler(logits, sampling)
        outputs = [request.output_token_ids for request in requests]
        asked = Outputs(params, outputs, step.starts, self.discard_request_mask.np[: len(requests)])
        step.verdicts = self._verifier.verify(step.trees, logits, asked, sampling)
        self._bring_home(step)
        return gather_output(step, logits, metadata.max_spec_len + 1, self.sampler, sampling)

    def _bring_home(self: Any, step: Step) -> None:
        """Copy accepted paths that end in scratch blocks to the requests' own."""
        if step.plan is None or not step.plan.has_segments:
            return
        self._set_segments(None)  # `_lay_out` sets those of trees only.
        last = np.array([verdict.path[-1] for verdict in step.verdicts])
        copies = step.plan.copies_home(last, self.input_batch.block_table[0].get_numpy_array())
        if copies.shape[1]:
            source, target = torch.from_numpy(copies).to(self.device)
            for cache in self.kv_caches:
                cache[target] = cache[source]

    def take_draft_token_ids(self: Any) -> Any:
        """vLLM's, with the parents of trees whose masks of a grammar the scheduler makes; None without any tree."""
        drafts = super().take_draft_token_ids() if self._drafts else None  # pyright: ignore[reportAttributeAccessIssue]
        if drafts is not None:
            drafts.parents = {
                name: draft.trees.parents[draft.row, : len(draft.tokens)].tolist()
                for name, draft in self._drafts.items()
                if self._has_grammar(name) and not self._masks_chains
            }
        return drafts

    def _has_grammar(self: Any, name: str) -> bool:
        request = self.requests.get(name)  # It may have left since it was drafted for.
        return request is not None and request.sampling_params.structured_outputs is not None

    def _input_fits_in_drafter(self: Any, common_attn_metadata: Any) -> bool:
        """Always: every tree ends where its request must."""
        return common_attn_metadata is not None

    def propose_draft_token_ids(
        self: Any, output: Any, emitted: Any, sampling: Any, hidden: Any, last_hidden: Any, states: Any, *args: Any
    ) -> list[list[int]]:
        """Learn what became of the step's trees, and draft for the next one."""
        step, names = self._step, self.input_batch.req_ids
        rows = [row for row, tokens in enumerate(emitted) if tokens]
        served = {names[row] for row in rows}  # The requests whose drafts were verified.
        self._drafts = {n: draft for n, draft in self._drafts.items() if n in self.requests and n not in served}
        if isinstance(self._reader, OnPages):
            self._reader.keep(states or [hidden], step, self.input_batch.block_table[0].get_numpy_array())
        if not rows:
            step.logits = None  # The states that a head reads later wait with the step.
            return [[] for _ in emitted]
        ranks, pass_ms = get_tp_group(), self._pass_ms(step, served)
        drafts = ranks.broadcast_object(self._draft(step, emitted, pass_ms) if ranks.is_first_rank else None)
        self._drafts |= drafts
        self.stats.record(step.drafted, step.verdicts, rows)
        self.stats.pass_ms += pass_ms or 0.0
        self.stats.draft_ms += self._draft_ms
        if ranks.is_first_rank:
            self.stats.report(perf_counter(), VLLM_LOG_STATS_INTERVAL)
        step.logits = None
        return [drafts[name].tokens[1:] if name in drafts else [] for name in names]

    def _pass_ms(self: Any, step: Step, served: set[str]) -> float | None:
        """The time since the last step's tokens were known but its draft's: all of a step, vLLM's scheduler included.

        None where a prompt was read, and where no request was in both steps, as the engine may have been idle.
        """
        (began, requests, num_prompt), now = self._last, perf_counter()
        self._last = now, served, step.num_prompt
        is_timed = num_prompt == step.num_prompt == 0 and not requests.isdisjoint(served)
        return 1e3 * (now - began) - self._draft_ms if is_timed else None

    def _draft(self: Any, step: Step, emitted: Sequence[Sequence[int]], pass_ms: float | None) -> dict[str, Draft]:
        """The requests' drafts; none where plain decoding is predicted to be faster."""
        drafting, num_rows = self._drafting, sum(map(bool, emitted))
        if step.plan is None and drafting.rests(num_rows):
            return {}
        rows = self._served_rows(step, emitted)
        assert step.logits is not None, "until the step's drafts are made"
        verified = rows, step.trees, step.logits, step.starts
        if drafting.control is not None:
            drafting.report(flat_step(*verified), self._draft_ms, pass_ms)
            self._draft_ms, room = 0.0, max(row.room for row in rows)
            context = int(self.input_batch.num_tokens_no_spec[: self.input_batch.num_reqs].max())
            if not drafting.control.choose(num_rows, context, room if room > 1 else 0, drafting.num_unread(rows)):
                if step.plan is not None or not drafting.is_resting:
                    drafting.update(*verified)
                return {}
        began = perf_counter()
        drafting.update(*verified)
        trees, num_blocks = self._trees_for(rows)
        parts = zip(rows, trees.trees, num_blocks, strict=True)
        drafts = {row.request: Draft(trees, n, tree.token_list, num) for n, (row, tree, num) in enumerate(parts)}
        self._draft_ms = 1e3 * (perf_counter() - began)
        return drafts

    def _served_rows(self: Any, step: Step, emitted: Sequence[Sequence[int]]) -> list[ServedRow]:
        """The requests that emitted tokens; a chunk of a prompt emits none."""
        batch, rows = self.input_batch, []
        step.verdicts = step.verdicts or [Verdict((0,), tokens[-1] if tokens else NO_TOKEN, True) for tokens in emitted]
        for number, (request_id, tokens) in enumerate(zip(batch.req_ids, emitted, strict=True)):
            if not tokens:
                continue
            request, length = self.requests[request_id], int(batch.num_tokens_no_spec[number])
            most = request.sampling_params.max_tokens or self.max_model_len
            room = min(most - len(request.output_token_ids), self.max_model_len - length)
            text = batch.token_ids_cpu[number, :length].tolist
            rows.append(ServedRow(request_id, number, step.verdicts[number], list(tokens), text, length, room))
        return rows

    def _trees_for(self: Any, rows: Sequence[ServedRow]) -> tuple[TreeBatch, list[int]]:
        """Trees that find their scratch blocks, and how many each of them takes."""
        tables = self.input_batch.block_table[0].get_numpy_array()
        trees = self._drafting.propose(rows, tables)
        if self._drafts_chains or self._masks_chains:
            trees = first_chains(trees, [self._drafts_chains or self._has_grammar(row.request) for row in rows])
        if self._drafting.control is not None:
            trees = self._drafting.control.trim(trees)
        trees = first_nodes(trees, self._tree_options.num_speculative_tokens + 1)
        needed = self._needed_blocks(trees, rows)
        is_cut = without_room(needed, len(self._scratch) - sum(draft.num_blocks for draft in self._drafts.values()))
        if is_cut.any():
            trees, needed = first_chains(trees, is_cut.tolist()), np.where(is_cut, 0, needed)
            self.stats.num_cut += int(is_cut.sum())
        return trees, needed.tolist()

    def _needed_blocks(self: Any, trees: TreeBatch, rows: Sequence[ServedRow]) -> np.ndarray:
        """Scratch blocks by row; of sampled children what the worst shape takes, see `without_room`."""
        size, most = self.input_batch.block_table[0].block_size, self._tree_options.num_speculative_tokens
        if trees.draft_probs is not None and not self._drafts_chains:
            return np.where(trees.num_nodes.numpy() > 1, most * (most // size + 2), 0)
        positions = self.input_batch.num_tokens_no_spec[[row.tree_row for row in rows]].astype(np.int64) - 1
        return scratch_blocks(trees.parents.numpy(), trees.depths.numpy(), positions, size)
