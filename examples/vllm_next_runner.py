"""Trees in vLLM's next model runner, V2, over the parts that treespec.vllm has for V1.

V2 keeps drafts on the device: its scheduler knows how many there are, a batch reads them from a table. Trees fit in:

- a `BaseSpeculator` proposes: the table has the trees in depth-first order, `take_draft_token_ids` their sizes;
- `prepare_attn` replaces positions and slots of scratch segments, before V1's builders make the metadata;
- a `RejectionSampler` verifies, after V2's own processors, which follow chains: requests with a grammar, penalties or
  the like get the first chain of their tree. A request's seed does not fix its output.

vLLM 0.32 makes V2's speculators by a fixed list of methods; this one takes the n-gram method's. On a CPU, where
Triton's interpreter runs V2's kernels, with VLLM_USE_V2_MODEL_RUNNER=1:

    LLM(model, worker_cls="vllm_next_runner.TreeWorker", scheduler_cls="treespec.vllm.scheduler.TreeScheduler",
        speculative_config={"method": "ngram", "prompt_lookup_max": 1, "num_speculative_tokens": 7},
        additional_config={"treespec": {"tree": 8}}, async_scheduling=False)
"""

# vLLM has an environment of its own.
# pyright: reportMissingImports=false

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from vllm.sampling_params import SamplingParams
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
from vllm.v1.attention.selector import _cached_get_attn_backend
from vllm.v1.outputs import DraftTokenIds
from vllm.v1.sample.sampler import Sampler
from vllm.v1.worker.cpu.model_runner import CPUModelRunner
from vllm.v1.worker.cpu_worker import CPUWorker
from vllm.v1.worker.gpu.input_batch import get_num_sampled_and_rejected
from vllm.v1.worker.gpu.sample.output import SamplerOutput
from vllm.v1.worker.gpu.spec_decode.rejection_sampler import RejectionSampler
from vllm.v1.worker.gpu.spec_decode.speculator import BaseSpeculator

from treespec.vllm import attention
from treespec.vllm.runner import TreeRunner
from treespec.vllm.scores import reads_path
from treespec.vllm.step import StepVerifier
from treespec.vllm.streams import Streams


class BatchView:
    """V2's batch under V1's names, as `TreeRunner` and `lay_out` read it."""

    def __init__(self, runner: Any, batch: Any, table: Tensor, slots: Tensor) -> None:
        self._states, self._index, blocks = runner.req_states, batch.idx_mapping, table[: batch.num_reqs].cpu().numpy()
        self.req_ids, self.num_reqs, self.generators = batch.req_ids, batch.num_reqs, {}
        # The host's numbers are upper bounds where vLLM schedules asynchronously.
        self.num_computed_tokens_cpu = runner.req_states.num_computed_tokens.gpu[self._index].cpu().numpy()
        self.block_table = [SimpleNamespace()]
        self.block_table[0].get_numpy_array = lambda: blocks
        self.block_table[0].block_size = runner.cache_config.block_size
        self.block_table[0].slot_mapping = SimpleNamespace(gpu=slots)
        ones = torch.ones(batch.num_reqs, device=table.device)  # V2's processors have done the rest.
        self.sampling_metadata = SimpleNamespace(temperature=ones, top_k=None, top_p=None, max_num_logprobs=None)

    @property
    def token_ids_cpu(self) -> np.ndarray:
        return self._states.all_token_ids.gpu[self._index].cpu().numpy()

    @property
    def num_tokens_no_spec(self) -> np.ndarray:
        return self._states.total_len.gpu[self._index].cpu().numpy()


class Request:
    """A request under V1's names; `is_chain`: the scores of a token depend on those before it."""

    def __init__(self, params: SamplingParams, states: Any, name: str) -> None:
        self.is_chain = reads_path(params) or params.structured_outputs is not None
        self.sampling_params = SamplingParams(temperature=params.temperature, max_tokens=params.max_tokens)
        self._states, self._index = states, states.req_id_to_index[name]

    @property
    def output_token_ids(self) -> range:
        """As many as were emitted."""
        return range(int(self._states.total_len.gpu[self._index]) - int(self._states.prompt_len.np[self._index]))


class TreeSpeculator(BaseSpeculator):
    """Proposes the runner's trees."""

    supports_mm_inputs, draft_logits = False, None

    def __init__(self, runner: Any) -> None:
        self._runner = runner

    def init_cudagraph_manager(self, cudagraph_mode: Any) -> None:
        """Drafts have no graphs."""

    def capture(self) -> None:
        """Nothing to capture."""

    def propose(self, *args: Any, dummy_run: bool = False, **kwargs: Any) -> Tensor:
        """Draft tokens [B, K], 0 after them; see `BaseSpeculator.propose`."""
        batch, _, _, hidden, states, num_sampled, *_ = args
        table = hidden.new_zeros((batch.num_reqs, self._runner.num_speculative_steps), dtype=torch.int64)
        if not dummy_run and kwargs.get("num_speculative_tokens") != 0:
            for row, tokens in enumerate(self._runner.draft(batch, hidden, states, num_sampled.tolist())):
                table[row, : len(tokens)] = torch.tensor(tokens, dtype=torch.int64)
        return table


class TreeVerifier(RejectionSampler):
    """Verifies the runner's trees."""

    runner: Any

    def __call__(self, logits: Tensor, input_batch: Any, *args: Any) -> SamplerOutput:
        """The emitted tokens [B, K + 1], from the logits of all nodes [M, V]."""
        batch, sampler, width = input_batch, self.sampler, self.num_speculative_steps
        tokens, positions = (values[batch.logits_indices] for values in (batch.input_ids, batch.positions))
        scores = sampler.apply_sampling_params(
            logits, batch.expanded_idx_mapping, batch.idx_mapping, batch.idx_mapping_np, positions, tokens,
            batch.expanded_local_pos, batch.seq_lens_cpu_upper_bound.numpy(),
        )  # fmt: skip
        drafted = SimpleNamespace(num_draft_tokens=batch.num_draft_tokens_per_req, max_spec_len=width)
        sampled = self.runner._sample(scores, drafted).sampled_token_ids.long()
        paths, along = [verdict.path for verdict in self.runner._step.verdicts], np.arange(len(logits))
        lengths, num_rejected = get_num_sampled_and_rejected(
            torch.tensor(list(map(len, paths)), dtype=torch.int32, device=logits.device), batch.seq_lens,
            batch.cu_num_logits, batch.idx_mapping, sampler.req_states.prefill_len.gpu,
        )  # fmt: skip
        for start, path in zip(batch.cu_num_logits_np[:-1].tolist(), paths, strict=True):
            # Where vLLM looks for a chain's logprobs.
            along[start : start + len(path)] = start + np.array(path)
        logits = scores if sampler.logprobs_mode.startswith("processed") else logits
        number = sampler.sampling_states.max_num_logprobs(batch.idx_mapping_np)
        cumulated = batch.cu_num_logits, batch.cu_num_logits_np
        logprobs = self._get_logprobs_tensors(sampled, lengths, logits[torch.from_numpy(along)], *cumulated, number)
        return SamplerOutput(sampled, logprobs, None, lengths, num_rejected)


class TreeModelRunner(TreeRunner, CPUModelRunner):
    """V2's runner with trees."""

    def __init__(self: Any, vllm_config: Any, device: torch.device) -> None:
        super().__init__(vllm_config, device)
        self.requests, self.positions, self._masks_chains = {}, self.input_buffers.positions, True
        self.speculator = TreeSpeculator(self)
        self._verifier = StepVerifier(self._tree_options.verification, Streams(self.model_config.seed or 0), Sampler())

    @property
    def _kernel_block_sizes(self: Any) -> list[int]:
        return self.kernel_block_sizes

    def load_model(self: Any, *args: Any, **kwargs: Any) -> None:
        super().load_model(*args, **kwargs)
        self.rejection_sampler = TreeVerifier(self.sampler, self.speculative_config, self.device)
        self.rejection_sampler.runner = self

    def add_requests(self: Any, scheduler_output: Any) -> None:
        super().add_requests(scheduler_output)
        for new in scheduler_output.scheduled_new_reqs:
            self.requests[new.req_id] = Request(new.sampling_params, self.req_states, new.req_id)

    def _remove_request(self: Any, req_id: str) -> bool:
        self.requests.pop(req_id, None)
        return super()._remove_request(req_id)

    def _has_grammar(self: Any, name: str) -> bool:
        return name in self.requests and self.requests[name].is_chain

    def prepare_attn(self: Any, input_batch: Any) -> Any:
        """vLLM's; then the step's trees are laid out."""
        tables, slots = super().prepare_attn(input_batch)
        counts, drafted = input_batch.num_scheduled_tokens.astype(np.int64), input_batch.num_draft_tokens_per_req
        is_read = input_batch.num_computed_tokens_np + counts < input_batch.prefill_len_np
        self.input_batch = BatchView(self, input_batch, tables[0], slots[0])
        self._proposed = [[]] * input_batch.num_reqs
        self.discard_request_mask = SimpleNamespace(np=is_read)
        tokens, ends = input_batch.input_ids.tolist(), np.cumsum(counts).tolist()
        rows = zip(input_batch.req_ids, ends, [0] * len(ends) if drafted is None else drafted.tolist(), strict=True)
        self._lay_out({name: tokens[end - number : end] for name, end, number in rows}, counts)
        return tables, slots

    def draft(self: Any, batch: Any, hidden: Tensor, states: Any, num_sampled: list[int]) -> list[list[int]]:
        """The next step's draft tokens of every request."""
        view, step = self.input_batch, self._step
        rows = zip(view.token_ids_cpu, view.num_tokens_no_spec, num_sampled, strict=True)
        emitted = [text[end - number : end].tolist() for text, end, number in rows]
        if step.logits is None:  # V2 samples a step without drafts by itself.
            step.logits, step.starts = self.model.compute_logits(hidden[batch.logits_indices]), range(batch.num_reqs)
        self._proposed = self.propose_draft_token_ids(None, emitted, None, hidden, None, states)
        return self._proposed

    def take_draft_token_ids(self: Any) -> DraftTokenIds:
        """Those of the trees; V2's own are full chains of placeholders."""
        drafts: Any = DraftTokenIds(list(self.input_batch.req_ids), self._proposed)
        drafts.parents = {}
        return drafts


class TreeWorker(CPUWorker):
    """vLLM's worker on a CPU; on CUDA names of backends and base classes differ."""

    backend, runner = f"{attention.__name__}.CPU_ATTN", TreeModelRunner

    def init_device(self) -> None:
        register_backend(AttentionBackendEnum.CPU_ATTN, self.backend)
        _cached_get_attn_backend.cache_clear()
        super().init_device()
        self.model_runner: Any = self.runner(self.vllm_config, self.device)

    def tree_stats(self) -> dict[str, float]:
        return self.model_runner.stats.as_dict()
