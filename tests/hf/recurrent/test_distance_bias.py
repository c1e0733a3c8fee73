"""Inkling's biases by distance and query temperatures: of positions in trees, as plain passes have them."""

from dataclasses import replace

import pytest
import torch
from helpers.rounds import Game
from helpers.tiny import identical
from helpers.zoo import BY_NAME, VOCAB_SIZE, build, prompts
from transformers import CONFIG_MAPPING, PreTrainedModel

from treespec import TokenRecycling, TreeSpeculation
from treespec.errors import TreespecWarning
from treespec.hf import make_scorer
from treespec.hf.recurrent import distance_bias
from treespec.hf.recurrent.scorer import StateScorer
from treespec.lab.selftest.drafters import Planted
from treespec.policies import BestFirst

pytestmark = pytest.mark.skipif("inkling_text" not in CONFIG_MAPPING, reason="needs a newer transformers")
LENGTH = 30


def tempered(attention: str = "sdpa") -> PreTrainedModel:
    """A model whose temperatures change from 20 tokens on."""
    architecture = BY_NAME["inkling_text"]
    options = {**architecture.options, "log_scaling_n_floor": 20, "log_scaling_alpha": 0.5}
    return build(replace(architecture, options=options), attention)


def differences(model: PreTrainedModel) -> float:
    """How far trees' logits are from paths', in rows without padding, whose slots get holes."""
    game = Game(model, StateScorer(model), [26, 26])
    worst = game.play(3, num_passes=1)
    game.select_rows([1])
    return max(worst, game.play(2, is_root_first=True))


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_trees_have_the_temperatures_of_their_positions(attention, monkeypatch):
    """Those of slots would be found."""
    assert differences(tempered(attention=attention)) <= 1e-4
    monkeypatch.setattr(distance_bias, "_temperature", lambda _, numbers: torch.ones_like(numbers).float())
    assert differences(tempered(attention=attention)) > 1e-3


def test_distances_of_slots_are_found_at_the_first_use(monkeypatch):
    monkeypatch.setattr(distance_bias.DistanceBiases, "__bool__", lambda _: False)
    with pytest.warns(TreespecWarning, match="by chains .* tree logits differ from path logits"):
        make_scorer(tempered())


@pytest.mark.parametrize(("padding", "num_nodes"), [((0,), 16), ((0, 5, 12), 16), ((0, 5, 12), 1)], ids=str)
def test_texts_are_those_of_plain_generate(padding, num_nodes):
    """Which counts padding in temperatures, in steps too."""
    model, mask = tempered(), torch.arange(LENGTH) >= torch.tensor(padding).unsqueeze(1)
    ids = prompts(len(padding), LENGTH).masked_fill(~mask, 0)
    options = {"attention_mask": mask.long(), "max_new_tokens": 20, "do_sample": False, "pad_token_id": 0}
    options["eos_token_id"] = VOCAB_SIZE + 1
    plain = model.generate(ids, **options)
    drafter = TokenRecycling() if num_nodes == 1 else Planted(plain[:, LENGTH:].tolist(), VOCAB_SIZE, 6)
    identical(model, ids, TreeSpeculation(drafter, tree=BestFirst(num_nodes)), **options)
