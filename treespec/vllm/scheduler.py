"""vLLM's scheduler without the scratch blocks, and with grammars along the branches of trees."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from vllm.config import VllmConfig
from vllm.v1.core.sched.scheduler import Scheduler

from treespec.vllm.drafts import NO_TOKEN
from treespec.vllm.grammars import allowed_nodes
from treespec.vllm.stats import logger
from treespec.vllm.supported import unserved, why_chains

MOST_TREES = 16
"""Full trees for which there are scratch blocks; when they are used up, trees become chains."""
SHARE = 4  # Scratch blocks are at most one in this many.
NULL_BLOCKS = 1  # vLLM's scheduler gives the first block to nobody.


class TreeScheduler(Scheduler):
    """Never hands out the last blocks of the cache: they are the workers' scratch blocks."""

    def __init__(self, vllm_config: VllmConfig, kv_cache_config: Any, **kwargs: Any) -> None:
        num_blocks = kv_cache_config.num_blocks - num_scratch_blocks(vllm_config, kv_cache_config)
        super().__init__(vllm_config, replace(kv_cache_config, num_blocks=num_blocks), **kwargs)
        if self.dynamic_sd_lookup is None:
            # Otherwise requests that join with one token are padded to full drafts, for the sake of full CUDA graphs.
            self.dynamic_sd_lookup = [self.num_spec_tokens] * (vllm_config.scheduler_config.max_num_seqs + 1)
        self._parents: dict[str, list[int]] = {}  # From `TreeRunner.take_draft_token_ids`, under a grammar.

    def add_request(self, request: Any) -> None:
        """vLLM's; a request that is not served ends with an error here, where no front end has refused it."""
        super().add_request(request)
        if lost := unserved(request.sampling_params):
            logger.error("Request %s ends, as treespec's trees do not serve %s", request.request_id, lost)
            self.grammar_compile_error_reqs.add(request.request_id)

    def update_draft_token_ids(self, draft_token_ids: Any) -> None:
        """vLLM's; trees under a grammar stay whole, where vLLM cuts a chain at the first token that is forbidden."""
        super().update_draft_token_ids(draft_token_ids)
        self._parents = {name: parents for name, parents in self._parents.items() if name in self.requests}
        for name, tokens in zip(draft_token_ids.req_ids, draft_token_ids.draft_token_ids, strict=True):
            self._parents.pop(name, None)
            request = self.requests.get(name)
            if name in draft_token_ids.parents and request and not (request.is_finished() or request.is_prefill_chunk):
                self._parents[name], request.spec_token_ids = draft_token_ids.parents[name], tokens

    def get_grammar_bitmask(self, scheduler_output: Any) -> Any:
        """vLLM's, with a mask per node of a tree in place of one per token of a chain."""
        drafts = scheduler_output.scheduled_spec_decode_tokens
        trees = {name: [NO_TOKEN] * len(tokens) for name, tokens in drafts.items() if name in self._parents}
        if trees:  # vLLM leaves masks of padding open.
            scheduler_output = replace(scheduler_output, scheduled_spec_decode_tokens={**drafts, **trees})
        output = super().get_grammar_bitmask(scheduler_output)
        if output is not None and trees:
            self._fill(output.structured_output_request_ids, drafts)
        return output

    def _fill(self, requests: Sequence[str], drafts: Mapping[str, list[int]]) -> None:
        """Masks of trees, in the rows of vLLM's table that follow each of these requests' first one."""
        manager, first = self.structured_output_manager, 0
        for name in requests:
            tokens = drafts.get(name, [])
            if name in self._parents and tokens:
                grammar = self.requests[name].structured_output_request.grammar
                for node in allowed_nodes(grammar, name, tokens, self._parents[name]):
                    manager._fill_bitmasks([(grammar, first + node, True)])
            first += 1 + len(tokens)


def num_scratch_blocks(config: VllmConfig, kv_cache_config: Any) -> int:
    """Two blocks per draft token of `MOST_TREES` requests: a short segment crosses at most one border of blocks.

    Fewer where a request of `max_model_len` needs the blocks: without them it would wait forever. None for chains.
    """
    if why_chains(config, kv_cache_config):
        return 0
    assert config.speculative_config is not None
    num_blocks = kv_cache_config.num_blocks
    num_requests = min(config.scheduler_config.max_num_seqs, MOST_TREES)
    wanted = 2 * config.speculative_config.num_speculative_tokens * num_requests
    longest = -(-config.model_config.max_model_len // config.cache_config.block_size)
    return max(min(wanted, num_blocks // SHARE, num_blocks - NULL_BLOCKS - longest), 0)
