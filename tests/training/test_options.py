"""Settings: parsed by their types, and refused when they are wrong."""

import math
from pathlib import Path

import pytest
from helpers.training import SMALL

from treespec.errors import ConfigError
from treespec.training import TrainingConfig, parse_settings, train
from treespec.training.options import KINDS


def test_settings_are_parsed_by_their_types():
    given = ["num_layers=2", "learning_rate=1e-3", "hidden_layers=2,15", "is_mixed=false", "kind=dflash"]
    assert TrainingConfig(**parse_settings(given)) == TrainingConfig(
        kind="dflash", num_layers=2, learning_rate=1e-3, hidden_layers=(2, 15), is_mixed=False
    )
    assert parse_settings(["minutes=none", "hidden_layers=3"]) == {"minutes": None, "hidden_layers": (3,)}


@pytest.mark.parametrize(
    ("setting", "message"),
    [("nothing=1", "no setting 'nothing'"), ("batch_size=2.5", "must be int"), ("is_mixed=1", "must be bool")],
)
def test_settings_that_are_wrong_are_named(setting, message):
    with pytest.raises(ConfigError, match=message):
        parse_settings([setting])


@pytest.mark.parametrize(
    ("kind", "setting"),
    [("eagle3", "markov_rank=64"), ("draft_model", "hidden_layers=2,15"), ("mtp", "hidden_layers=1,2")],
)
def test_settings_of_another_kind_are_named(kind, setting):
    name = setting.partition("=")[0]
    with pytest.raises(ConfigError, match=f"{name} does not apply to a drafter of the kind {kind}"):
        parse_settings([setting], kind)
    with pytest.raises(ConfigError, match=f"{name} does not apply"):
        parse_settings([setting, f"kind={kind}"], "dflash")
    if name != "hidden_layers":
        assert name in parse_settings([setting], "dflash")
    assert name in parse_settings([setting])


@pytest.mark.parametrize(
    "options",
    [
        {"kind": "other"},
        {"batch_size": 0},
        {"tv_weight": 1.5},
        {"minutes": -1.0},
        {"depth_decay": math.nan},
        {"max_length": 4},
        {"num_steps": 5, "minutes": 1.0},
        {"num_depths": 1, "kind": "dflash"},
        {"markov_rank": -1},
        {"learning_rate": "1e-3"},
        {"start": Path("runs/first")},
    ],
)
def test_configurations_that_cannot_be_are_refused(options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        TrainingConfig(**options)


def test_a_kind_is_one_entry(target, texts, tmp_path):
    KINDS.register("mine", KINDS["dflash"]._replace(name="Head of mine", load="mine()", num_depths=3))
    try:
        result = train(target, texts, tmp_path, TrainingConfig(kind="mine", **SMALL | {"num_depths": None}))
        assert "mask_token" in parse_settings(["mask_token=3"], "mine")
        card = (result.folder / "README.md").read_text()
        assert "# Head of mine" in card
        assert "drafter = mine()" in card
        assert len(result.evaluation.overlap) == 3
    finally:
        KINDS.forget("mine")
