"""Traces of tests need no measured pass times."""

import pytest


@pytest.fixture(autouse=True)
def _unmeasured(monkeypatch):
    monkeypatch.setattr("treespec.lab.trace.about.pass_times", lambda model: {1: 1.0, 16: 1.2})
