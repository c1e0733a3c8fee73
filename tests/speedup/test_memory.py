"""The memory estimate against the bytes of the tensors of a run."""

import pytest
import torch
from helpers import mtp_files, zoo
from helpers.accelerator.device import PretendAccelerator, to_device
from helpers.tiny import noisy_copy, tiny_llama
from helpers.wrong_heads import METHODS, write

from treespec import SuffixLookup, TokenRecycling, TreeSpeculation, load_drafter, load_mtp, speed_up
from treespec.errors import ConfigError
from treespec.speedup import estimate_memory
from treespec.speedup.memory import draft_bytes


def num_bytes(cache):
    return sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers if layer.is_initialized)


def decoded(model, speculation, num_new=12):
    """The bytes of the model's cache per token, after a call."""
    ids = zoo.prompts(2, 9) % 64
    options = {"max_new_tokens": num_new, "do_sample": False, "eos_token_id": None, "return_dict_in_generate": True}
    out = model.generate(ids[:1], **options, custom_generate=speculation)
    cache = out.past_key_values if hasattr(out, "past_key_values") else out.cache
    return num_bytes(cache) // (9 + num_new - 1)


def buffers(drafter):
    """The bytes per slot of a head's cache."""
    keys = drafter._keys
    return sum(part.nbytes for pair in keys._buffers.values() for part in pair) // keys._capacity


@pytest.fixture(scope="module")
def model():
    return tiny_llama(num_layers=8)


@pytest.mark.parametrize("method", METHODS)
def test_a_head(model, tmp_path, method):
    write(tmp_path, METHODS[method])
    drafter = load_drafter(tmp_path, model)
    speculation = TreeSpeculation([drafter, TokenRecycling(), SuffixLookup()], tree=6)
    found = estimate_memory(model, speculation)
    assert found.cache_per_token == decoded(model, speculation)
    assert found.draft_cache_per_token == buffers(drafter) > 0
    shared = {weight.data_ptr() for weight in model.parameters()}
    own = sum(weight.nbytes for weight in drafter.head.parameters() if weight.data_ptr() not in shared)
    assert own <= found.weights <= own + sum(one.nbytes for one in drafter.head.buffers())
    assert found.tables == speculation.drafter._drafters[1].table.nbytes
    logits = torch.zeros(1, 1, 64)
    assert found.per_node == logits.nbytes * 3 + 9 * 32 * 4


def test_mtp_layers(tmp_path):
    made = mtp_files.write(tmp_path, "mimo", 2)
    drafter = load_mtp(made.target)
    speculation = TreeSpeculation(drafter, tree=6)
    found = estimate_memory(made.target, speculation)
    assert found.cache_per_token == decoded(made.target, speculation)
    assert found.draft_cache_per_token == buffers(drafter) > 0
    assert found.weights >= sum(weight.nbytes for weight in drafter.head.parameters())


def test_a_draft_model(model):
    draft = noisy_copy(model)
    found = estimate_memory(model, TreeSpeculation(draft))
    assert found.weights == sum(weight.nbytes for weight in {*draft.parameters(), *draft.buffers()})
    assert found.draft_cache_per_token == found.cache_per_token == 8 * 2 * 2 * 8 * 4
    assert found.per_node == 64 * 4 * 3
    assert found.added(100, 2, 10) == found.weights + 2 * (10 * (768 + 2 * 1024) + 100 * 1024)


def test_states_of_rows():
    target = zoo.build("qwen3_5_text")
    found = estimate_memory(target, TreeSpeculation(TokenRecycling()))
    assert found.state_per_row > 0
    assert found.cache_per_token == 2 * target.config.num_key_value_heads * target.config.head_dim * 4
    assert found.weights == found.draft_cache_per_token == 0


@pytest.mark.parametrize("name", ["rwkv", "recurrent_gemma"])
def test_states_that_are_in_no_transformers_cache(name):
    target = zoo.build(name)
    found = estimate_memory(target, TreeSpeculation(TokenRecycling()))
    assert found.state_per_row > 0
    assert (found.cache_per_token > 0) is (name == "recurrent_gemma")


def test_it_is_said(model):
    speculation = speed_up(model)
    try:
        assert "\nmemory    4 kB for what drafts, in addition to the model" in str(speculation)
        assert "4 kB of draft weights and tables" in str(estimate_memory(model, speculation))
    finally:
        speculation.restore()
    with pytest.raises(ConfigError, match="expected a TreeSpeculation"):
        estimate_memory(model, TokenRecycling())
    with pytest.raises(ConfigError, match="num_rows"):
        estimate_memory(model, speculation).added(10, 0)


def test_a_model_on_an_accelerator():
    with PretendAccelerator():
        model, draft = tiny_llama(), tiny_llama(seed=1)
        to_device(model)
        to_device(draft)
        found = draft_bytes(model, TreeSpeculation([draft, TokenRecycling()]).drafter)
        assert found == (sum(weight.nbytes for weight in {*draft.parameters(), *draft.buffers()}), 64 * 8 * 8)
