"""Token trees for an unmodified vLLM: a plugin, docs/vllm.md.

A tree is cut into segments, each of them a sequence of its own in the paged cache, so that any attention kernel serves.
Nothing here imports vLLM before vLLM has loaded the plugin.
"""

from treespec.vllm.options import Options
from treespec.vllm.plugin import Proposer

__all__ = ["Options", "Proposer"]
