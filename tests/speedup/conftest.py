"""Fixtures of all tests of `speed_up`."""

import pytest

from treespec.speedup import kernels


@pytest.fixture(autouse=True)
def no_compiler(monkeypatch):
    """Nothing is compiled meanwhile, which takes a core half a minute."""
    monkeypatch.setattr(kernels, "load_library", lambda folder, is_background: None)
