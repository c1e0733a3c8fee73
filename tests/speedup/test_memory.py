"""The memory estimate against the bytes of the tensors of a run."""

import gc

import pytest
import torch
from helpers import mtp_files, zoo
from helpers.accelerator.device import DEVICE, PretendAccelerator, to_device
from helpers.accelerator.memory import Memory
from helpers.tiny import noisy_copy, prompt, tiny_llama
from helpers.wrong_heads import METHODS, write

from treespec import SuffixLookup, TokenRecycling, TreeSpeculation, load_drafter, load_mtp, speed_up
from treespec.errors import ConfigError, TreespecWarning
from treespec.hf.cache.growing import GrowingLayer
from treespec.hf.recurrent.scorer import StateScorer
from treespec.speedup import estimate_memory
from treespec.speedup.memory import draft_bytes


def num_bytes(cache):
    layers = [layer for layer in cache.layers if getattr(layer, "keys", None) is not None]
    return sum(layer.keys.nbytes + layer.values.nbytes for layer in layers)


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
    assert found.tables == speculation.drafter.drafters[1].table.nbytes
    logits = torch.zeros(1, 1, 64)
    assert found.per_node == logits.nbytes * 3 + 9 * 32 * 4


@pytest.mark.parametrize(("name", "num_layers"), [("mimo", 2), ("qwen3_5", 1), ("nemotron_h", 1)])
def test_mtp_layers(tmp_path, name, num_layers):
    made = mtp_files.write(tmp_path, name, num_layers)
    drafter = load_mtp(made.target)
    speculation = TreeSpeculation(drafter, tree=6)
    found = estimate_memory(made.target, speculation)
    assert found.cache_per_token == decoded(made.target, speculation)
    assert found.draft_cache_per_token == buffers(drafter) > 0
    assert found.weights >= sum(weight.nbytes for weight in drafter.head.parameters())


KINDS = ("qwen3_5_text", "bamba", "minimax", "rwkv")
PARENTS = 8
"""Bytes per node of the scorer's own notes."""


def storages():
    """By address those of all tensors that the collector knows; other tests may have left fake or packed ones."""
    kinds = {torch.Tensor, torch.nn.Parameter}
    tensors = [one for one in gc.get_objects() if type(one) in kinds]
    found = [one.untyped_storage() for one in tensors if one.device.type == "cpu" and one.layout == torch.strided]
    return {one.data_ptr(): one for one in found}


def states_of(scorer):
    layers = [vars(layer) for layer in scorer.cache.layers if type(layer) is not GrowingLayer]
    states = [one for layer in layers for kind in ("conv_states", "recurrent_states") for one in layer[kind].values()]
    return sum(one.nbytes for one in states if one is not None)


@torch.no_grad()
def kept_bytes(model, num_rows, num_nodes):
    """Bytes that a pass leaves until the commit, without keys and values, for which there is room; and of states."""
    scorer, ids = StateScorer(model), zoo.prompts(num_rows, 20)
    scorer.prefill(ids, ids >= 0)
    scorer.extend(ids[:, :1], torch.full((num_rows, 1), -1))
    scorer.commit([(0,)] * num_rows)
    parents, before = [-1, *((node - 1) // 2 for node in range(1, num_nodes))], storages()
    gc.freeze()
    scorer.extend(ids[:, :1].expand(-1, num_nodes), torch.tensor([parents] * num_rows))
    gc.collect()
    new = [one.nbytes() for address, one in storages().items() if address not in before]
    gc.unfreeze()
    return sum(new), states_of(scorer)


@pytest.mark.parametrize("name", KINDS)
def test_what_recurrent_layers_keep(name):
    """Rows, rows during a step, and nodes, also where states are in no transformers cache."""
    target = zoo.build(name)
    found = estimate_memory(target, TreeSpeculation(TokenRecycling()))
    assert (found.cache_per_token > 0) is (name != "rwkv")
    (small, states), (large, _), (step, _) = (kept_bytes(target, 3, num) for num in (4, 12, 1))
    assert states == 3 * found.state_per_row > 0
    of_node = found.per_node - 3 * 4 * zoo.VOCAB_SIZE
    assert large - small == 3 * 8 * (of_node + PARENTS)
    most = 3 * (found.state_per_row + of_node + PARENTS)
    assert step <= most
    assert small <= most + 3 * 3 * (of_node + PARENTS)
    assert name in ("minimax", "rwkv") or step >= states


def test_a_hybrid_draft_model():
    target, draft = tiny_llama(vocab_size=zoo.VOCAB_SIZE), zoo.build("qwen3_5_text")
    found = estimate_memory(target, TreeSpeculation(draft))
    alone = estimate_memory(draft, TreeSpeculation(TokenRecycling()))
    assert found.state_per_row == alone.draft_state_per_row == 0
    assert found.draft_state_per_row == alone.state_per_row > 0
    assert found.draft_cache_per_token == alone.cache_per_token
    assert found.per_node == alone.per_node
    per_node = found.per_node + found.cache_per_token + found.draft_cache_per_token
    per_row = 10 * per_node + 100 * found.draft_cache_per_token + 2 * found.draft_state_per_row
    assert found.added(100, 2, 10) == found.weights + 2 * per_row
    assert alone.added(100, 2, 1) == alone.tables + 2 * (alone.per_node + alone.cache_per_token + alone.state_per_row)


def test_snapshots_keep_nothing_of_nodes():
    target = zoo.build("zaya")
    with pytest.warns(TreespecWarning, match="by chains"):
        found = estimate_memory(target, TreeSpeculation(TokenRecycling()))
    assert found.state_per_row > 0
    assert found.per_node == 3 * 4 * zoo.VOCAB_SIZE


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


@pytest.mark.parametrize("who", ["draft model", "tables"])
def test_sampling_on_an_accelerator_is_within_the_estimate(who):
    """tests/cuda/test_cost.py measures the same on a GPU, where operations need memory of their own too."""
    with Memory() as device:
        model = to_device(tiny_llama(vocab_size=4096))
        drafter = to_device(noisy_copy(tiny_llama(vocab_size=4096))) if who == "draft model" else TokenRecycling()
        speculation = TreeSpeculation(drafter, tree=16, seed=0)
        options = {"max_new_tokens": 16, "pad_token_id": 0, "do_sample": True, "custom_generate": speculation}
        model.generate(prompt(2, 20).to(DEVICE), **options)
        found = estimate_memory(model, speculation)
        device.peak = before = device.num_bytes
        model.generate(prompt(2, 20).to(DEVICE), **options)
        bound = found.added(36, 2, 16) - found.weights
        assert bound / 5 < device.peak - before < bound
