"""Plans of kernels: measured once, kept with care, without kernels that are wrong."""

import json
import warnings

import pytest
import torch
from torch import nn

import treespec
from treespec.cpu import kernel_plan as module
from treespec.cpu import optimized_model
from treespec.cpu.linear_kernels import NUM_ROWS, PLAIN, Packed
from treespec.errors import TreespecWarning

FIRST_TIMES = {PLAIN: dict.fromkeys(NUM_ROWS, 3.0), "packed": dict.fromkeys(NUM_ROWS, 2.0)}
pytestmark = pytest.mark.usefixtures("folder")


def test_measured_once_and_kept(layers, folder, monkeypatch):
    calls = []
    monkeypatch.setattr(module, "measure", lambda *_: calls.append(1) or FIRST_TIMES)
    assert set(treespec.optimize(layers).plan.choices.values()) == {"packed"}
    assert set(treespec.optimize(layers).plan.times_ms) == set(FIRST_TIMES)
    assert len(calls) == 1
    treespec.optimize(layers, is_remeasured=True)
    assert len(calls) == 2
    treespec.optimize(nn.Linear(24, 51))
    assert len(calls) == 3
    assert len(list(folder.glob("*.json"))) == 2


@pytest.mark.parametrize("damage", ["not json", "[]", "{}", "other machine", "unknown kernel", "rows missing"])
def test_damaged_and_foreign_files_are_ignored_with_a_warning(layers, folder, monkeypatch, damage):
    monkeypatch.setattr(module, "measure", lambda *_: FIRST_TIMES)
    treespec.optimize(layers)
    (path,) = folder.glob("*.json")
    data = json.loads(path.read_text())
    if damage == "other machine":
        data["facts"]["processor"] = "another"
    elif damage == "unknown kernel":
        data["choices"]["16"] = "magic"
    elif damage == "rows missing":
        del data["choices"]["16"]
    path.write_text(json.dumps(data) if damage[0] not in "n[{" else damage)
    with pytest.warns(TreespecWarning, match="is ignored"):
        assert set(treespec.optimize(layers).plan.choices.values()) == {"packed"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        treespec.optimize(layers)


def test_a_folder_that_cannot_be_written_to_is_said(layers, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.warns(TreespecWarning, match="cannot be kept"):
        plan = treespec.optimize(layers).plan
    assert "native" in plan.missing


def test_a_wrong_kernel_is_left_out(layers, monkeypatch):
    class Wrong(Packed):
        def run(self, inputs, packed, bias, num_outputs):
            return super().run(inputs, packed, bias, num_outputs) * 1.001

    monkeypatch.setattr(optimized_model, "exact_kernels", lambda *_: ({"wrong": Wrong()}, {}))
    with pytest.warns(TreespecWarning, match="'wrong'"):
        plan = treespec.optimize(layers).plan
    assert set(plan.choices.values()) == {PLAIN}
    assert "differs" in plan.missing["wrong"]


def test_the_choice_prefers_one_kernel():
    times = {PLAIN: dict.fromkeys(NUM_ROWS, 1.0), "packed": dict.fromkeys(NUM_ROWS, 0.95)}
    assert set(module.choose(times).values()) == {"packed"}
    times[PLAIN][256], times[PLAIN][64] = 0.94, 0.8
    choices = module.choose(times)
    assert choices[256] == "packed"
    assert choices[64] == PLAIN


def test_measuring_draws_nothing_from_torchs_generator(layers):
    state = torch.get_rng_state()
    module.measure([part for part in layers.modules() if isinstance(part, nn.Linear)], {}, (1, 2))
    assert torch.get_rng_state().equal(state)
