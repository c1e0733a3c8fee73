"""What an earlier process found spares passes, and no check of a tree."""

from unittest.mock import patch

import pytest
import torch
from helpers.rounds import PLANTED
from helpers.zoo import build
from torch import nn

from treespec.errors import TreespecWarning
from treespec.hf import make_scorer
from treespec.hf.models import kept_checks
from treespec.protocols import Capability


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(kept_checks, "cache_folder", lambda: tmp_path)
    return tmp_path / "checks"


def first_use(model, **options):
    """The capability of a model's scorer, and how many passes its first use took."""
    with patch.object(nn.Embedding, "forward", autospec=True, side_effect=nn.Embedding.forward) as embed:
        return make_scorer(model, **options).capability, embed.call_count


@pytest.mark.parametrize("options", [{}, {"max_cache_len": 64}], ids=["growing", "static"])
def test_a_model_of_a_known_kind_takes_few_passes(folder, options):
    capability, num_passes = first_use(build("llama"), **options)
    assert capability == Capability.TREE
    assert len(list(folder.iterdir())) == 2
    known, fewer = first_use(build("llama"), **options)
    assert known == Capability.TREE
    assert 0 < fewer <= 5 < num_passes


def test_other_models_are_checked_whole():
    first_use(build("llama"))
    assert first_use(build("llama", "eager"))[1] > 5
    assert first_use(build("llama").to(torch.bfloat16))[1] > 5
    assert first_use(build("mistral"))[1] > 5
    hooked = build("llama")
    hooked.model.layers[0].register_forward_hook(lambda *_: None)
    assert first_use(hooked)[1] > 5


@pytest.mark.filterwarnings("ignore::treespec.TreespecWarning")
@pytest.mark.parametrize("bug", [bug for bug, (name, _) in PLANTED.items() if name == "llama"])
def test_a_wrong_tree_of_a_known_model_is_found(bug, monkeypatch):
    first_use(build("llama"))
    PLANTED[bug][1](monkeypatch)
    scorer = make_scorer(build("llama"))
    assert scorer.capability != Capability.TREE or bug in ("holes forgotten", "window by slot")


@pytest.mark.filterwarnings("ignore::treespec.TreespecWarning")
def test_what_cannot_run_trees_is_found_again(folder, monkeypatch):
    PLANTED["siblings seen"][1](monkeypatch)
    for _ in range(2):
        assert make_scorer(build("llama")).capability != Capability.TREE
    assert len(list(folder.iterdir())) == 1, "what the probe found is kept"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"other": 1}'])
def test_damaged_files_are_said_and_replaced(folder, text):
    first_use(build("llama"))
    for file in folder.iterdir():
        file.write_text(text)
    with pytest.warns(TreespecWarning, match="is ignored and written again"):
        capability, num_passes = first_use(build("llama"))
    assert capability == Capability.TREE
    assert num_passes > 5
    assert first_use(build("llama"))[1] <= 5
