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
