"""vLLM's CPU attention with segments, under the name that vLLM imports."""

from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

from treespec.vllm.attention import with_segments

SegmentCPUBackend = with_segments(CPUAttentionBackend, f"{__name__}.SegmentCPUBackend")
