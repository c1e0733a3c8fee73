"""vLLM on CPUs: layers with states, whose output its own drafts change, and latent attention; trees are refused there.

A test that fails says that this vLLM was mended: `treespec.vllm.supported` may then serve more.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.engines.churn import ENGINE, TREES, VOCAB, random_requests
from helpers.engines.engine import run_jobs
from helpers.engines.models import tiny_deepseek, tiny_granite

pytest.importorskip("vllm.config")
pytestmark = pytest.mark.slow

NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1, "prompt_lookup_max": 3}
WITHOUT_PREFIXES = {**ENGINE, "enable_prefix_caching": False}  # Those of states take a kernel that CPUs lack.
REQUESTS = random_requests(40, VOCAB, seed=2)
LATE = [{**request, "arrives": 5 * request["arrives"]} for request in REQUESTS]
JOBS = {name: {"churn": requests, "has_aborts": False} for name, requests in (("crowd", REQUESTS), ("few", LATE))}
REFUSED = "recurrent layers on CPUs, where vLLM's own drafts fail or change its output"


def test_vllms_own_drafts_change_the_output(tmp_path: Path) -> None:
    tiny_granite(tmp_path, VOCAB)
    engine = {**WITHOUT_PREFIXES, "model": str(tmp_path)}
    plain, drafted = (run_jobs({**engine, **more}, JOBS) for more in ({}, {"speculative_config": NGRAM}))
    expected, found = plain["crowd"]["outputs"], drafted["crowd"]["outputs"]
    assert plain["few"]["outputs"] == expected  # Whoever shares the batches.
    assert sum(map(list.__eq__, found, expected)) < len(REQUESTS) / 2
    with pytest.raises(RuntimeError, match=REFUSED):
        run_jobs({**engine, "speculative_config": TREES}, JOBS)


def test_in_latent_attention_the_batch_changes_plain_outputs(tmp_path: Path) -> None:
    tiny_deepseek(tmp_path, VOCAB)
    engine = {**WITHOUT_PREFIXES, "model": str(tmp_path)}
    plain = run_jobs(engine, JOBS)
    assert plain["few"]["outputs"] != plain["crowd"]["outputs"]  # There is nothing that drafts could be compared with.
    with pytest.raises(RuntimeError, match="MLA on CPUs, where who shares a batch changes plain vLLM's output"):
        run_jobs({**engine, "speculative_config": TREES}, JOBS)
