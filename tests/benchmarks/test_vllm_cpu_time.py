"""Counts of the benchmark of CPU time."""

from types import SimpleNamespace
from typing import Any

from benchmarks.vllm.cpu_time import Engine


def test_the_warm_up_does_not_count() -> None:
    engine: Any = Engine.__new__(Engine)
    counts = {"num_steps": 3, "num_draft_tokens": 20, "num_accepted_tokens": 8, "num_cut": 0, "pass_ms": 5.0}
    engine.has_trees, engine.llm = True, SimpleNamespace(collective_rpc=lambda name: [counts])
    engine._warm_up = engine._counts()
    counts |= {"num_steps": 13, "num_draft_tokens": 35, "num_accepted_tokens": 9}
    found = {"num_steps": 10, "num_draft_tokens": 15, "num_accepted_tokens": 1, "num_cut": 0}
    assert engine.stats() == {**found, "draft_tokens_per_step": 1.5}
    engine.has_trees = False
    engine._warm_up = engine._counts()
    assert engine.stats() == {}
