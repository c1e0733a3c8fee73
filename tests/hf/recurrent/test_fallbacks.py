"""Models with states that have no form for trees: chains by snapshot and replay, token for token, or an error."""

import pytest
import torch
from helpers.tiny import identical
from helpers.zoo import BY_CHAINS, VOCAB_SIZE, Architecture, build, prompts
from transformers import CONFIG_MAPPING, Cache

import treespec
from treespec.errors import TreespecWarning, UnsupportedModelError
from treespec.hf import make_scorer
from treespec.hf.cache.growing import GrowingLayer
from treespec.hf.introspect import model_facts
from treespec.hf.models import capability as capability_file
from treespec.hf.recurrent import layers
from treespec.lab.selftest.drafters import Planted
from treespec.policies import BestFirst

OPTIONS = {"do_sample": False, "pad_token_id": 0, "eos_token_id": VOCAB_SIZE + 1}
KNOWN = [architecture for architecture in BY_CHAINS if architecture.model_type in CONFIG_MAPPING]
SLOW = ("inkling2_text", "inkling2_loop_text", "qwen4_exp_text")


@pytest.mark.parametrize(
    "architecture", [pytest.param(a, marks=[pytest.mark.slow] * (str(a) in SLOW)) for a in KNOWN], ids=str
)
@pytest.mark.filterwarnings("ignore::treespec.errors.TreespecWarning")
def test_chains_are_token_for_token(architecture: Architecture):
    model = build(architecture)
    assert make_scorer(model).capability == architecture.capability
    for padding, num_nodes in (([0], 16), ([0, 5, 12], 4)):
        mask = torch.arange(30) >= torch.tensor(padding).unsqueeze(1)
        ids = prompts(len(padding), 30).masked_fill(~mask, 0)
        given = {"attention_mask": mask.long(), "max_new_tokens": 10, **OPTIONS}
        plain = model.generate(ids, **given)
        speculation = treespec.TreeSpeculation(
            Planted(plain[:, 30:].tolist(), VOCAB_SIZE, 4), tree=BestFirst(num_nodes)
        )
        assert identical(model, ids, speculation, **given).mean_acceptance_length > 1


def test_an_index_of_blocks_is_known_by_its_budget():
    """Qwen4-Exp's: texts beyond it decode plainly, shorter ones by chains."""
    model = build("qwen4_exp_text")
    assert capability_file.num_indexed(model_facts(model)) == 256
    with pytest.warns(TreespecWarning, match="by chains because"):
        make_scorer(model)


def test_recurrent_gemma_before_transformers_5_23_is_refused_by_name(monkeypatch):
    monkeypatch.setattr(layers, "state_cache", lambda _: Cache(layers=[GrowingLayer() for _ in range(3)]))
    with pytest.raises(UnsupportedModelError, match="trees of recurrent_gemma need transformers"):
        make_scorer(build("recurrent_gemma"))
