"""The command that result files record."""

import shlex
import sys

import pytest

from benchmarks.common import settings as module


def test_the_command_can_be_pasted_into_a_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    script = str(module.RESULTS.parent / "vllm" / "cpu_time.py")
    monkeypatch.setattr(sys, "argv", [script, "--engines", "plain", "head and lookups", "--out=/tmp/a/b.json"])
    expected = ["python", "-m", "benchmarks.vllm.cpu_time", "--engines", "plain", "head and lookups", "--out=b.json"]
    assert shlex.split(module.settings()["command"]) == expected
    monkeypatch.setattr(sys, "argv", [str(module.RESULTS.parents[1] / "recipes/smollm2_head/overlap.py")])
    assert module.settings()["command"] == "python -m recipes.smollm2_head.overlap"
