"""vLLM's server with trees and a real OpenAI client: streams, concurrent and cancelled requests, a restart."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from helpers.engines.engine import MODEL, PROMPTS

from benchmarks.vllm.serve import running

pytest.importorskip("vllm.config")
openai = pytest.importorskip("openai")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not MODEL.is_dir(), reason="SmolLM2 is not converted: make demo")]
SPECULATION = {"method": "treespec", "num_speculative_tokens": 11, "tree": 12, "warm_start": "SmolLM2-135M-Instruct"}
ENGINE = ["--max-model-len", "160", "--max-num-seqs", "4", "--kv-cache-memory-bytes", str(1 << 28)]


@contextmanager
def server() -> Iterator[tuple[Any, subprocess.Popen[bytes]]]:
    """A client of a server that runs, and the server's process; all its processes end with it."""
    with tempfile.TemporaryDirectory() as shared:  # Processes share their metrics.
        more = {"PROMETHEUS_MULTIPROC_DIR": shared, "VLLM_LOG_STATS_INTERVAL": "1"}
        with running([*ENGINE, "--served-model-name", "model"], SPECULATION, more) as (port, process):
            yield openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", timeout=60), process


def complete(client: Any, prompt: str, **options: Any) -> str:
    given = {"model": "model", "prompt": prompt, "max_tokens": 16, "temperature": 0, **options}
    return client.completions.create(**given).choices[0].text


def metric(client: Any, name: str) -> float:
    address = str(client.base_url).removesuffix("/v1/") + "/metrics"
    with urllib.request.urlopen(address, timeout=10) as page:
        lines = page.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name) and "per_pos" not in line)


def test_a_server_serves_streams_and_crowds_and_survives_cancelled_requests() -> None:
    with server() as (client, process):
        alone = [complete(client, prompt) for prompt in PROMPTS]
        with ThreadPoolExecutor(8) as pool:
            crowd = list(pool.map(lambda prompt: complete(client, prompt), PROMPTS * 2))
        assert crowd == alone * 2

        options = {"model": "model", "max_tokens": 16, "temperature": 0}
        stream = client.completions.create(prompt=PROMPTS[0], stream=True, **options)
        assert "".join(part.choices[0].text for part in stream) == alone[0]

        for prompt in PROMPTS[:3]:  # Closed after the first part.
            part = client.completions.create(prompt=prompt, stream=True, **{**options, "max_tokens": 100})
            next(iter(part))
            part.close()
        assert complete(client, PROMPTS[1]) == alone[1]

        chat = client.chat.completions.create(
            model="model", messages=[{"role": "user", "content": "Say hello."}], max_tokens=12, n=2, seed=3, top_p=0.9,
            extra_body={"min_p": 0.05}, logit_bias={"260": -5},
        )  # fmt: skip
        assert len(chat.choices) == 2
        with pytest.raises(openai.BadRequestError, match="thinking_token_budget"):
            complete(client, PROMPTS[0], extra_body={"thinking_token_budget": 3})
        assert metric(client, "vllm:spec_decode_num_accepted_tokens") > 0
        assert metric(client, "treespec:num_trees_total") > 0
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(20)
    with server() as (client, _):
        assert complete(client, PROMPTS[1]) == alone[1]
