"""Pass times are measured once, kept, and read again; damaged files are replaced."""

import itertools
import json
import types

import pytest
from helpers.tiny import tiny_llama

import treespec
from treespec.errors import TreespecWarning
from treespec.lab import pass_times as module


def pass_times(*model, **options):
    return module.pass_profile(*model, **options).pass_ms


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty one. The clock goes on by a millisecond whenever it is read, and no other process runs."""
    clock = itertools.count()
    monkeypatch.setattr(module, "time", types.SimpleNamespace(perf_counter=lambda: next(clock) / 1e3))
    monkeypatch.setattr(module.OtherWork, "share", lambda self: 0.0)
    monkeypatch.setattr(module, "is_quiet", lambda: True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(module, "NUM_ROUNDS", 1)
    return tmp_path / "treespec" / "passes"


def test_measured_once_and_kept(folder, monkeypatch):
    found = pass_times(tiny_llama())
    assert sorted(found) == sorted(module.NUM_NODES)
    assert min(found.values()) > 0
    (file,) = folder.iterdir()
    assert {int(n): ms for n, ms in json.loads(file.read_text())["pass_ms"].items()} == found
    monkeypatch.setattr(module, "measure", lambda facts: {1: 7.0})
    assert pass_times(tiny_llama()) == found  # Another object of the same shapes.
    assert pass_times(tiny_llama(), is_remeasured=True) == {1: 7.0}
    assert pass_times(tiny_llama(num_layers=3)) == {1: 7.0}
    assert len(list(folder.iterdir())) == 2


def test_a_measurement_that_takes_long_says_what_it_does(monkeypatch, capsys):
    for silent_seconds, is_said in ((0.0, True), (3600.0, False)):
        monkeypatch.setattr(module, "SILENT_SECONDS", silent_seconds)
        pass_times(tiny_llama(), is_remeasured=True)
        assert ("measure passes of LlamaForCausalLM, once on this machine" in capsys.readouterr().err) == is_said


def test_slow_models_are_measured_at_two_sizes(monkeypatch):
    monkeypatch.setattr(module, "MOST_SECONDS", 0.0)
    assert sorted(pass_times(tiny_llama())) == [1, 16]


def test_optimised_layers_have_times_of_their_own(monkeypatch):
    model, times = tiny_llama(), iter([{1: 7.0}, {1: 5.0}])
    monkeypatch.setattr(module, "measure", lambda facts: next(times))
    assert pass_times(model) == {1: 7.0}
    with treespec.optimize(model):
        assert pass_times(model) == {1: 5.0}
    assert pass_times(model) == {1: 7.0}


@pytest.mark.parametrize(
    "text", ["", "[]", '{"format": 4, "others_share": 0, "pass_ms": {}}', '{"format": 4, "pass_ms": {"1": "x"}}']
)
def test_damaged_files(folder, monkeypatch, text):
    monkeypatch.setattr(module, "measure", lambda facts: {1: 7.0})
    pass_times(tiny_llama())
    (file,) = folder.iterdir()
    file.write_text(text)
    with pytest.warns(TreespecWarning, match="is ignored and written again"):
        assert pass_times(tiny_llama()) == {1: 7.0}
    assert json.loads(file.read_text())["pass_ms"] == {"1": 7.0}


def test_what_a_busy_machine_measured_is_measured_again_when_it_is_quiet(folder, monkeypatch):
    times = iter([{1: 9.0}, {1: 5.0}])
    monkeypatch.setattr(module, "measure", lambda facts: next(times))
    monkeypatch.setattr(module.OtherWork, "share", lambda self: 0.6)
    assert module.pass_profile(tiny_llama()) == ({1: 9.0}, 0.6)
    monkeypatch.setattr(module, "is_quiet", lambda: False)
    assert pass_times(tiny_llama()) == {1: 9.0}, "the machine is still busy"
    monkeypatch.setattr(module, "is_quiet", lambda: True)
    monkeypatch.setattr(module.OtherWork, "share", lambda self: 0.0)
    model = tiny_llama()
    assert pass_times(model) == {1: 5.0}
    assert pass_times(model) == pass_times(tiny_llama()) == {1: 5.0}
    (file,) = folder.iterdir()
    assert json.loads(file.read_text())["others_share"] == 0.0


def test_no_pass_takes_longer_than_one_over_more_nodes(monkeypatch):
    times = {1: 0.009, 2: 0.004, 4: 0.007, 8: 0.005, 16: 0.006, 32: 0.02, 64: 0.03, 128: 0.04}
    monkeypatch.setattr(module, "time_pass", lambda scorer, count: times[count])
    found = pass_times(tiny_llama(), is_remeasured=True)
    assert found == {1: 4.0, 2: 4.0, 4: 5.0, 8: 5.0, 16: 6.0, 32: 20.0, 64: 30.0, 128: 40.0}
