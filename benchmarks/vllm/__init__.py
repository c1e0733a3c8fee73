"""Trees in a real vLLM compared with its own methods."""

from pathlib import Path

NAME = "SmolLM2-135M-Instruct"
MODEL = Path.home() / ".cache" / "treespec" / f"{NAME}-float32"
ENVIRONMENT = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
"""Variables of an engine's process."""
STRIDE = 17
"""The difference of successive answers' lengths, up to the largest one."""


def answer_lengths(count: int, tokens: int) -> list[int]:
    """Half to one and a half times so many tokens: plain requests of equal lengths would end together and read their
    next prompts in one pass, as real ones do not."""
    return [tokens // 2 + STRIDE * number % (tokens + 1) for number in range(count)]
