"""A new drafter is one new file and one line, which registers it: whatever takes drafters by name takes it."""

import runpy
from pathlib import Path

import pytest
import torch
from helpers.tiny import identical, tiny_llama
from helpers.toy_drafter import ToyDrafter

from treespec import SuffixLookup, TokenRecycling, TreeSpeculation, from_config, load_setting, save_setting
from treespec.drafters import registry
from treespec.drafters.registry import DRAFTERS
from treespec.errors import ConfigError
from treespec.heads.files.kinds import KINDS
from treespec.hf.loading.formats import FORMATS
from treespec.hf.vllm_config import _KEYS
from treespec.lab.named import SHIPPED, named_drafters
from treespec.lab.setting import Setting
from treespec.vllm.drafting import make_drafter
from treespec.vllm.options import MERGE, READERS, Options

PROMPT = torch.tensor([[5, 9, 2, 7, 5, 9]])


@pytest.fixture
def toy(request):
    DRAFTERS.register("toy", getattr(request, "param", ToyDrafter))
    yield "toy"
    DRAFTERS.forget("toy")


@pytest.mark.parametrize("toy", ["helpers.toy_drafter:ToyDrafter", ToyDrafter], ids=["path", "class"], indirect=True)
def test_configurations_commands_setting_files_and_vllm_know_its_name(toy, tmp_path):
    model = tiny_llama()
    (named,) = named_drafters([toy], model, None, "model")
    configured = from_config({"method": toy, "num_speculative_tokens": 3})
    served = make_drafter(Options(drafter=toy))
    assert [type(drafter) for drafter in (named, configured.drafter, served)] == [ToyDrafter] * 3
    given = TreeSpeculation([named, SuffixLookup()], tree=6)
    save_setting(given, tmp_path / "a.json", model)
    assert Setting.load(tmp_path / "a.json").drafters == (toy, "suffix")
    kept = load_setting(tmp_path / "a.json", model)
    assert repr(kept.drafter) == repr(given.drafter)
    for speculation in (configured, kept):
        identical(model, PROMPT, speculation, max_new_tokens=8)


def test_unregistered_names_are_refused_with_those_that_are_known():
    for refused in (
        lambda: from_config({"method": "toy", "num_speculative_tokens": 3}),
        lambda: Options(drafter="toy"),
    ):
        with pytest.raises(ConfigError, match=r"recycling.*suffix"):
            refused()
    assert type(from_config({"method": "recycling", "num_speculative_tokens": 3}).drafter) is TokenRecycling


@pytest.mark.parametrize(
    ("registry", "message"),
    [
        (DRAFTERS, "a drafter is registered by its class or a function that makes it, got 5"),
        (KINDS, "a kind of head is a HeadKind, got 5"),
        (FORMATS, "a format of drafters is a Format, got 5"),
    ],
)
def test_what_is_not_of_its_kind_is_refused_when_it_is_registered(registry, message):
    with pytest.raises(ConfigError, match=message):
        registry.register("toy", 5)
    assert "toy" not in registry


def test_names_that_are_taken_are_refused(toy):
    for name in sorted({*_KEYS, *SHIPPED, MERGE, *READERS, *KINDS, *FORMATS}):
        with pytest.raises(ConfigError, match=rf"called '{name}' is there already; choose another name"):
            DRAFTERS.register(name, ToyDrafter)
    for others in (KINDS, FORMATS):
        for name in (toy, "recycling", "ngram", "eagle3", "medusa"):
            with pytest.raises(ConfigError, match=rf"called '{name}' is there already"):
                others.register(name, "my_package.my_module:PART")


def test_a_registered_name_that_ends_as_vllms_older_ones_is_taken_as_it_is():
    DRAFTERS.register("toy_mtp", ToyDrafter)
    try:
        assert type(from_config({"method": "toy_mtp", "num_speculative_tokens": 3}).drafter) is ToyDrafter
    finally:
        DRAFTERS.forget("toy_mtp")


def test_what_makes_no_drafter_is_refused_when_it_is_named():
    DRAFTERS.register("toy", lambda: 5)  # pyright: ignore[reportArgumentType]
    try:
        with pytest.raises(ConfigError, match=r"expected a Drafter.*got 5"):
            from_config({"method": "toy", "num_speculative_tokens": 3})
        with pytest.raises(ConfigError, match="toy cannot serve requests that come and go"):
            make_drafter(Options(drafter="toy"))
    finally:
        DRAFTERS.forget("toy")


def test_the_names_of_kinds_and_formats_are_taken_before_these_are_loaded():
    """`DRAFTERS` states them again, as it imports neither: a kind that is added must be stated too."""
    taken = runpy.run_path(str(Path(registry.__file__)))["DRAFTERS"].taken
    assert {*taken["kind of head"]} == {*KINDS}
    assert {*taken["format of drafters"]} == {*FORMATS}
