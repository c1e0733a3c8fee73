"""Versions of vLLM, by stand-ins for its modules; the table against a real one is in test_supported.py."""

import logging
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from treespec.errors import UnsupportedModeError
from treespec.vllm.touched import TOUCHED, VERSIONS, check_version, missing

ROOT = Path(__file__).parents[2]


class Runner:
    """With a method that another version calls `_draw`."""

    def __init__(self) -> None:
        self.requests = {}

    def _sample(self, logits) -> None:
        """Nothing."""


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch):
    """A table of names of the runner above."""
    module = ModuleType("stand_in")
    vars(module)["Runner"] = Runner
    monkeypatch.setitem(sys.modules, "stand_in", module)
    return lambda *names: {"stand_in:Runner": names}


def test_names_that_differ_between_versions_stand_side_by_side(table) -> None:
    assert missing(table("requests", "_sample(self,logits)")) == []
    assert missing(table("_draw(self,logits) or _sample(self,logits)", "states or requests")) == []
    both = "_draw(self,logits) or _sample(self,scores)"
    assert missing(table(both)) == [f"stand_in:Runner.{both}"]
    assert missing({"stand_in:Other": ["x"], "no_such_module": ["x"]}) == ["stand_in:Other", "no_such_module"]


@pytest.mark.parametrize(
    ("parameters", "is_known"),
    [("a,b,c", True), ("a,...", True), ("a,b,...", True), ("a,b", False), ("a,c,...", False), ("...", False)],
)
def test_what_is_called_may_have_more_parameters_with_defaults(
    parameters: str, is_known: bool, table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Runner, "example", staticmethod(lambda a, b=0, c=0: None), raising=False)
    assert (missing(table(f"example({parameters})")) == []) is is_known


@pytest.mark.parametrize("version", ["0.31.0", "0.99.0", "1.0"])
def test_another_version_is_named_in_a_warning_and_the_table_decides(
    version: str, table, caplog: pytest.LogCaptureFixture
) -> None:
    logger = logging.getLogger("vllm.treespec")
    logger.addHandler(caplog.handler)  # vLLM's loggers do not propagate; without vLLM this one does.
    check_version(f"{VERSIONS[0]}.0", {})
    check_version(version, {})
    logger.removeHandler(caplog.handler)
    assert {record.getMessage() for record in caplog.records} == {
        f"treespec was tried with vLLM {' and '.join(VERSIONS)}, this is {version}: its output was never compared"
    }
    with pytest.raises(UnsupportedModeError, match=rf"Runner\._draw; install .* {' or '.join(VERSIONS)}$"):
        check_version(version, table("_draw"))


def test_the_extra_installs_the_versions_that_are_served() -> None:
    """From the first of them to the one before the next."""
    (extra,) = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["vllm"]
    major, minor = VERSIONS[-1].split(".")
    assert extra == f"vllm>={VERSIONS[0]},<{major}.{int(minor) + 1}"


def test_no_entry_of_the_table_is_there_twice() -> None:
    for names in TOUCHED.values():
        assert len(set(names)) == len(names)
