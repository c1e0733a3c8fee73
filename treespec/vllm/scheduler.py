"""vLLM's scheduler without the scratch blocks."""

from dataclasses import replace
from typing import Any

from vllm.config import VllmConfig
from vllm.v1.core.sched.scheduler import Scheduler

MOST_TREES = 16
"""Full trees for which there are scratch blocks; when they are used up, trees become chains."""
SHARE = 4
"""Scratch blocks are at most one in this many."""
NULL_BLOCKS = 1
"""vLLM's scheduler gives the first block to nobody."""


class TreeScheduler(Scheduler):
    """Never hands out the last blocks of the cache: they are the workers' scratch blocks."""

    def __init__(self, vllm_config: VllmConfig, kv_cache_config: Any, **kwargs: Any) -> None:
        num_blocks = kv_cache_config.num_blocks
        kept = replace(kv_cache_config, num_blocks=num_blocks - num_scratch_blocks(vllm_config, num_blocks))
        super().__init__(vllm_config=vllm_config, kv_cache_config=kept, **kwargs)
        if self.dynamic_sd_lookup is None:
            # Otherwise requests that join with one token are padded to full drafts, for the sake of full CUDA graphs.
            self.dynamic_sd_lookup = [self.num_spec_tokens] * (vllm_config.scheduler_config.max_num_seqs + 1)


def num_scratch_blocks(config: VllmConfig, num_blocks: int) -> int:
    """Two blocks per draft token of `MOST_TREES` requests: a short segment crosses at most one border of blocks.

    Fewer where a request of `max_model_len` needs the blocks: without them it would wait forever.
    """
    assert config.speculative_config is not None
    trees = min(config.scheduler_config.max_num_seqs, MOST_TREES)
    wanted = min(2 * config.speculative_config.num_speculative_tokens * trees, num_blocks // SHARE)
    longest = -(-config.model_config.max_model_len // config.cache_config.block_size)
    return max(min(wanted, num_blocks - NULL_BLOCKS - longest), 0)
