"""Fixtures of the tests of `optimize`: a cache folder with the compiled product, and two layers."""

import os
import shutil

import pytest
import torch
from torch import nn

from treespec.cpu import kernel_plan, native
from treespec.cpu.native import NativeError, native_linear


@pytest.fixture(scope="session")
def compiled():
    """The process's folder with the compiled product, or why there is none; what a compiler refuses is a failure."""
    try:
        native.find_compilers()
    except NativeError as error:
        return str(error)
    folder = kernel_plan.kernel_folder()  # Other tests that need the product find it there.
    native_linear(folder)
    return folder


@pytest.fixture
def library(compiled):
    if isinstance(compiled, str):
        assert "CI" not in os.environ, compiled  # Where all must run, a compiler that is missing is a failure.
        pytest.skip(compiled)
    return compiled


@pytest.fixture
def folder(tmp_path, monkeypatch, compiled):
    """The user's cache folder with the compiled product, and one round of measurement."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(kernel_plan, "NUM_ROUNDS", 1)
    folder = tmp_path / "treespec" / "optimize"
    if not isinstance(compiled, str):
        shutil.copytree(compiled, folder, ignore=shutil.ignore_patterns("*.json", "tmp*"))  # Others compile in `tmp*`.
    return folder


@pytest.fixture
def layers():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(24, 50), nn.Linear(50, 8, bias=False)).requires_grad_(False)
