"""Two workers on one machine: what one process writes, whatever the first rank's clock decides to draft."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.engines.churn import ENGINE, VOCAB, random_requests
from helpers.engines.engine import run_jobs

pytest.importorskip("vllm.config")
pytestmark = pytest.mark.slow

NUM_PROMPTS = 10
SHORT = {"max_tokens": 14, "ignore_eos": True, "detokenize": False}
SAMPLED = [{"temperature": 0.8, "top_p": 0.9, "seed": number, **SHORT} for number in range(NUM_PROMPTS)]
GREEDY = ("greedy", "chunks and cached prefixes")
COUNTS = ("num_steps", "num_verified", "num_trees", "num_draft_tokens", "num_accepted_tokens")


@pytest.fixture(scope="module")
def jobs() -> dict[str, Any]:
    prompts = np.random.default_rng(0).integers(0, VOCAB, (NUM_PROMPTS, 9)).tolist()
    greedy = {"temperature": 0, "presence_penalty": 0.3, **SHORT}
    return {
        "greedy": {"prompts": prompts, "params": greedy},
        "seeded": {"prompts": prompts, "params": SAMPLED},
        "chunks and cached prefixes": {
            "prompts": [one["prompt"] for one in random_requests(20, VOCAB)],
            "params": {**SHORT, "temperature": 0},
        },
    }


@pytest.fixture(scope="module")
def plain(folders: tuple[str, str], jobs: dict[str, Any]) -> dict[str, Any]:
    """Two ranks of vLLM itself. Seeded tokens are drawn otherwise in trees."""
    engine = {**ENGINE, "model": folders[0], "tensor_parallel_size": 2}
    return run_jobs(engine, {name: jobs[name] for name in GREEDY}, more={"OMP_NUM_THREADS": "1"})


@pytest.fixture(scope="module")
def alone(folders: tuple[str, str], jobs: dict[str, Any]) -> dict[str, Any]:
    """Trees in one process."""
    speculation = {"method": "treespec", "tree": 8}
    return run_jobs({**ENGINE, "model": folders[0], "speculative_config": speculation}, jobs)


@pytest.mark.parametrize(
    "options",
    [{"tree": 8, "head": "head"}, {"head": "head"}, {"tree": 8, "draft_model": "model"}],
    ids=["trees of 8", "auto", "a draft model"],
)
def test_two_ranks_write_what_one_process_writes(
    folders: tuple[str, str],
    jobs: dict[str, Any],
    plain: dict[str, Any],
    alone: dict[str, Any],
    options: dict[str, Any],
) -> None:
    names = dict(zip(("model", "head"), folders, strict=True))
    engine = {**ENGINE, "model": folders[0], "tensor_parallel_size": 2}
    engine |= {"speculative_config": {"method": "treespec", **{k: names.get(v, v) for k, v in options.items()}}}
    found = run_jobs(engine, jobs, more={"OMP_NUM_THREADS": "1"})
    assert {name: found[name] for name in jobs} == {name: alone[name] for name in jobs}
    assert [found[name] for name in GREEDY] == [plain[name] for name in GREEDY]
    assert [found["other ranks"][0][name] for name in COUNTS] == [found["stats"][name] for name in COUNTS]
    if "tree" in options:
        assert found["stats"]["num_trees"] > 30
        assert found["stats"]["num_accepted_tokens"] > 30
