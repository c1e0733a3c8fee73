"""The versions that treespec says it works with are those of pyproject.toml; a newer one is named, not refused."""

import re
import subprocess
import sys
import tomllib
import warnings
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers.tiny import noisy_copy, prompt, tiny_llama
from packaging.requirements import Requirement
from packaging.version import Version
from transformers.utils import logging

import treespec
from treespec.checks import OLDEST, TESTED, installed_versions, needed_versions, warn_of_untested
from treespec.errors import TreespecWarning
from treespec.hf.introspect import CACHE_ARGUMENTS, cache_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
REQUIRED = {Requirement(line).name: Requirement(line).specifier for line in PROJECT["dependencies"]}


@pytest.mark.parametrize("name", TESTED)
def test_floors_are_those_of_the_metadata_and_what_runs_here_is_tested(name):
    """Fails when a release comes that has not been tested: run the whole suite with it, then raise `TESTED`."""
    floors = [part.version for part in REQUIRED[name] if part.operator == ">="]
    assert floors == [OLDEST[name]]
    assert REQUIRED[name].contains(TESTED[name])
    pinned = [
        line.split("==")[1] for line in (ROOT / "constraints.txt").read_text().splitlines() if name + "==" in line
    ]
    assert Version(OLDEST[name]).release <= Version(pinned[0]).release[:2] <= Version(TESTED[name]).release
    assert REQUIRED[name].contains(installed_versions()[name], prereleases=True)
    assert Version(installed_versions()[name]).release[:2] <= Version(TESTED[name]).release


@pytest.mark.parametrize("number", ["99.0.0", "5.100.0.dev0", "5.100+cpu"])
def test_a_newer_release_is_named(number):
    with pytest.warns(TreespecWarning, match=f"transformers {number.replace('+', '.')} is newer than"):
        warn_of_untested({"transformers": number})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for tested in ("5.24.0", "5.24.9", "5.18.0", "4.57.6"):
            warn_of_untested({"transformers": tested})


def test_one_version_everywhere():
    citation = re.findall(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert [PROJECT["version"]] == citation == [treespec.__version__]


def test_a_renamed_cache_is_an_import_error_with_the_versions(monkeypatch):
    """At the first import of what needs transformers."""
    assert [cache_name(["sequences", name]) for name in CACHE_ARGUMENTS] == list(CACHE_ARGUMENTS)

    def import_again(name):
        spec = find_spec("treespec.hf.introspect")
        assert spec is not None
        assert spec.loader is not None
        spec.loader.exec_module(module_from_spec(spec))

    renamed = SimpleNamespace(__dataclass_fields__={"sequences": 0, "memory": 0})
    monkeypatch.setattr("transformers.generation.utils.GenerateDecoderOnlyOutput", renamed)
    monkeypatch.setattr("treespec.registry.import_module", import_again)
    with pytest.raises(ImportError, match="no cache by a known name") as caught:
        treespec.__getattr__("generate")
    assert f"transformers {OLDEST['transformers']} to {TESTED['transformers']} (here: " in str(caught.value)
    assert needed_versions() in str(caught.value)


def floors_of(extra):
    run = subprocess.run([sys.executable, ".ci/floors", extra], capture_output=True, text=True, cwd=ROOT, check=True)
    return dict(line.split("==") for line in run.stdout.split())


def test_the_oldest_environment_has_every_floor_of_extras_within_extras_too():
    wanted = {Requirement(line).name for line in PROJECT["dependencies"] + PROJECT["optional-dependencies"]["cli"]}
    floors = floors_of("cli")
    assert set(floors) == wanted
    assert {name: floors[name] for name in OLDEST} == OLDEST
    assert all(specifier.contains(floors[name]) for name, specifier in REQUIRED.items())
    assert {"matplotlib", "typer", "pyarrow"} < set(floors_of("study")) - {"treespec"}


def test_the_short_suite_exists():
    suite = (ROOT / ".ci/smoke").read_text().partition("tests=(")[2].partition(")")[0].split()
    assert len(suite) > 5
    assert all((ROOT / path).exists() for path in suite)


@pytest.mark.parametrize("options", [{"do_sample": False}, {"do_sample": True, "top_p": 0.9, "output_scores": True}])
def test_no_deprecated_call_of_transformers(options, caplog):
    """Also those that transformers only logs, once for each message."""
    logging.warning_once.cache_clear()
    target = tiny_llama()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        speculation = treespec.TreeSpeculation(noisy_copy(target), tree=8)
        treespec.generate(target, prompt(2), speculation, max_new_tokens=12, return_dict_in_generate=True, **options)
        treespec.generate(target, prompt(1), speculation, max_new_tokens=6, cache_implementation="static", **options)
    assert [record.getMessage() for record in caplog.records if "deprecated" in record.getMessage()] == []


def test_shares_are_all_tests_each_once(request):
    """CI runs one share of the long tests: what no share had would never run there."""
    (conftest,) = (p for p in request.config.pluginmanager.get_plugins() if hasattr(p, "nothing_said_before"))
    chosen, left_out = [], []
    for share in ("0/3", "1/3", "2/3"):
        hook = SimpleNamespace(pytest_deselected=lambda items: left_out.extend(items))
        conftest.pytest_collection_modifyitems(
            SimpleNamespace(getoption=lambda _, s=share: s, hook=hook), items := list("abcdefg")
        )
        chosen += items
    assert sorted(chosen) == list("abcdefg")
    assert sorted(left_out) == sorted(2 * list("abcdefg"))
