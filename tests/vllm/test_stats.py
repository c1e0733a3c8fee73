"""Counts of a server's trees, in its log and for Prometheus."""

import pytest
import torch

from treespec.tree import TreeBatch, Verdict
from treespec.vllm import stats as module
from treespec.vllm.stats import ServingStats


def test_counts_are_reported_once_per_interval_and_only_if_something_was_drafted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    counts: dict[str, float] = {}

    class Counter:
        def __init__(self, name: str) -> None:
            self.name = name

        def inc(self, count: float) -> None:
            counts[self.name] = counts.get(self.name, 0) + count

    monkeypatch.setattr(module, "_counter", Counter)
    module.logger.addHandler(caplog.handler)  # vLLM's loggers do not propagate; without vLLM this one does.
    stats = ServingStats()
    tree = TreeBatch(torch.zeros(2, 3, dtype=torch.int64), torch.tensor([[-1, 0, 0], [-1, 0, 1]]))
    root = TreeBatch(torch.zeros(2, 1, dtype=torch.int64), torch.full((2, 1), -1))
    with caplog.at_level("INFO", module.logger.name):
        for now, trees in ((1.0, root), (2.0, tree), (5.0, tree), (13.0, tree), (30.0, root)):
            stats.record(trees, [Verdict((0,), 1, False), Verdict((0, 1)[: trees.max_nodes], 1, False)], [0, 1])
            stats.report(now, 10.0)
    module.logger.removeHandler(caplog.handler)
    lines = list(dict.fromkeys(record.getMessage() for record in caplog.records))
    assert [line.split("of")[0] for line in lines] == ["Trees: 1 ", "Trees: 2 "]
    assert "4 texts got" in lines[1]
    assert "8 nodes drafted, 2 accepted, 1.50 tokens per text and step" in lines[1]
    assert counts["num_trees"] == stats.num_trees == 3
    assert "_reported" not in stats.as_dict()


def test_prometheus_has_the_counts() -> None:
    client = pytest.importorskip("prometheus_client")
    module._counter("num_cut").inc(2)
    assert client.REGISTRY.get_sample_value("treespec:num_cut_total") == 2
