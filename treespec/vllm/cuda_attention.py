"""vLLM's CUDA attention with segments, under the names that vLLM imports.

Tests have no GPU: `benchmarks/vllm/cuda.py` compares outputs on one.
"""

from vllm.v1.attention.backends.flash_attn import FlashAttentionBackend
from vllm.v1.attention.backends.triton_attn import TritonAttentionBackend

from treespec.vllm.attention import with_segments

SegmentFlashBackend = with_segments(FlashAttentionBackend, f"{__name__}.SegmentFlashBackend")
SegmentTritonBackend = with_segments(TritonAttentionBackend, f"{__name__}.SegmentTritonBackend")
