"""Model cards."""

import torch

from treespec.training.report import machine


def test_the_processor_is_named_where_it_did_the_work(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"a GPU at {device}")
    assert machine(torch.device("cuda:1")) == "a GPU at cuda:1"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert "GPU" not in machine(torch.device("cpu"))
