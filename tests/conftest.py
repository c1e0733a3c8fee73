"""Shared settings: shapes in signatures are checked, one thread, so that parallel tests do not stall each other, and a
cache folder of the tests' own."""

import os
import sys
import tempfile

import pytest
import torch
from helpers import on_device, shape_checks

CHECKED = (
    "treespec.tree",
    "treespec.heads.modules.kv_cache",
    "treespec.verification",
    "treespec.policies",
    "treespec.hf.attention",
    "treespec.hf.cache",
    "treespec.hf.models",
)
shape_checks.install(CHECKED)  # Before the first import of treespec.
torch.set_num_threads(1)
if device := os.environ.get("TREESPEC_TEST_DEVICE"):
    on_device.install(device)

_cache = tempfile.TemporaryDirectory(prefix="treespec-tests-")
os.environ["XDG_CACHE_HOME"] = _cache.name  # Removed when the process ends; subprocesses of tests inherit it.


def pytest_addoption(parser):
    parser.addoption("--share", default="0/1", metavar="K/N", help="every Nth test only, from number K on: 0/4 ... 3/4")


@pytest.hookimpl(trylast=True)  # After marks have chosen.
def pytest_collection_modifyitems(config, items):
    first, step = map(int, config.getoption("share").split("/"))
    chosen = set(items[first::step])
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = [item for item in items if item in chosen]


@pytest.fixture(autouse=True)
def nothing_said_before(monkeypatch):
    """A warning that comes once per process comes in every test, and shapes are checked: no test depends on those that
    ran before it."""
    shape_checks.num_calls.clear()
    # Not imported here: the tests of treespec.vllm need no transformers.
    if capability := sys.modules.get("treespec.hf.models.capability"):
        monkeypatch.setattr(capability, "_said", set())
