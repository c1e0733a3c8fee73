"""Sampling with trees in a real vLLM: G-tests of the joint distribution of four tokens of a tiny random model.

The model has five tokens, so that all 625 outputs have known probabilities. Planted mistakes must be found.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from helpers.engines.distribution import BUGS, CASES, Case, run_case, sample
from helpers.engines.drafters import VOCAB
from helpers.engines.models import tiny_llama

pytest.importorskip("vllm.config")
pytestmark = pytest.mark.slow

NUM_SAMPLES = int(os.environ.get("TREESPEC_VLLM_SAMPLES", "4000"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("distribution")
    return folder, tiny_llama(folder / "tiny", VOCAB)


def title(case: Case) -> str:
    return f"{case.name}, {case.bug or case.rule}"


@pytest.mark.parametrize("case", CASES, ids=title)
def test_samples_follow_the_models_distribution(model: tuple[Path, Any], case: Case) -> None:
    rows = run_case(*model, case, NUM_SAMPLES)
    assert min(row["p"] for row in rows) > 1e-4
    assert case.is_timed or min(row["accepted"] for row in rows) > NUM_SAMPLES / 20


@pytest.mark.parametrize("case", BUGS, ids=title)
def test_a_planted_mistake_is_found(model: tuple[Path, Any], case: Case) -> None:
    (row,) = run_case(*model, case, NUM_SAMPLES)
    assert row["p"] < 1e-12


def test_a_seed_decides_the_output_whatever_is_drafted(model: tuple[Path, Any]) -> None:
    """Also where its prompt is read in chunks, which plain vLLM 0.32 cannot on CPUs."""
    folder, params = model[0] / "tiny", {"seeded": {"seed": 7}}
    in_chunks = sample(folder, {"tree": 8}, params, 400, max_num_batched_tokens=128)
    whole = sample(folder, {"tree": 3, "drafter": "suffix"}, params, 400)
    assert len({tuple(result["ids"]) for found in (in_chunks, whole) for result in found["seeded"]}) == 1
