"""The benchmark of `speed_up` on kinds of models loads every kind and reports what it finds."""

import json

import pytest
import torch
from helpers.tiny import tiny_llama

from benchmarks import speed_up_kinds
from treespec.lab import smollm2


def test_kinds_are_compared_with_plain_and_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "sys.argv", ["it", "--new-tokens", "4", "--output", str(tmp_path / "out.json"), "--kinds", "tiny"]
    )
    speed_up_kinds.main()
    data = json.loads((tmp_path / "out.json").read_text())["found"]["tiny"]
    assert data["differing"] == 0
    assert len(data["T = 1"]) == 20
    assert "| tiny | lookups, which learn as they go |" in (tmp_path / "out.md").read_text()


@pytest.mark.parametrize("name", ["bare", "bfloat16", "with a head"])
def test_kinds_of_smollm2(monkeypatch, name):
    monkeypatch.setattr(smollm2, "load", lambda: (tiny_llama(), None))
    model = speed_up_kinds.kinds(None)[name].load()
    assert model.dtype == (torch.bfloat16 if name == "bfloat16" else torch.float32)
    assert (model.config.name_or_path == "a-model") == (name == "bare")
