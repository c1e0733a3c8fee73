"""Growing layers: whatever is done to one gives what transformers' `DynamicLayer` gives, without copying the cache."""

import copy
import io

import pytest
import torch
from transformers import DynamicCache
from transformers.cache_utils import DYNAMIC_LAYER_TYPE_MAPPING, DynamicLayer

from treespec.hf.cache.growing import LEAST_SPARE, GrowingLayer, use_dynamic_layers, use_growing_layers


def fresh(length, num_rows=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, num_rows, 3, length, 4, generator=generator).unbind()


def filled(layer, length=5):
    layer.update(*fresh(length))
    return layer


def cut(layer):
    layer.keys, layer.values = layer.keys.narrow(-2, 0, 3), layer.values.narrow(-2, 0, 3)


def select(layer):
    layer.keys, layer.values = (states.index_select(0, torch.tensor([1, 0])) for states in (layer.keys, layer.values))


def move(layer):
    layer.keys.narrow(-2, 1, 2).copy_(layer.keys.narrow(-2, 3, 2))


def turn(layer):
    layer.keys = layer.keys.flip(-2)


OPERATIONS = {
    "cut": cut,
    "select rows": select,
    "move": move,
    "replace": turn,
    "crop": lambda layer: layer.crop(-2),
    "reorder": lambda layer: layer.reorder_cache(torch.tensor([1, 1])),
    "repeat": lambda layer: layer.batch_repeat_interleave(2),
    "pick rows": lambda layer: layer.batch_select_indices(torch.tensor([1, 0])),
    "offload": lambda layer: layer.offload(),
    "reset": lambda layer: layer.reset(),
    "nothing": lambda layer: None,
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_equals_a_dynamic_layer(name):
    ours, theirs = filled(GrowingLayer()), filled(DynamicLayer())
    for length in (2, LEAST_SPARE, 3):
        for layer in (ours, theirs):
            OPERATIONS[name](layer)
        rows = theirs.keys.shape[0] if theirs.get_seq_length() else 2
        returned = [layer.update(*fresh(length, rows, seed=length)) for layer in (ours, theirs)]
        assert returned[0][0].equal(returned[1][0])
        assert returned[0][1].equal(returned[1][1])
        assert ours.get_seq_length() == theirs.get_seq_length()
        assert ours.get_mask_sizes(3) == theirs.get_mask_sizes(3)


def test_buffers_grow_by_a_quarter():
    layer, sizes = GrowingLayer(), set()
    for _ in range(2000):
        layer.update(*fresh(1))
        size = layer.keys.untyped_storage().nbytes() // (2 * 3 * 4 * 4)
        sizes.add(size)
        assert layer.get_seq_length() <= size <= layer.get_seq_length() + max(layer.get_seq_length() // 4, LEAST_SPARE)
    assert len(sizes) < 20


def test_copies_share_nothing_that_is_written_to():
    layer = filled(GrowingLayer())
    for twin in (copy.copy(layer), copy.deepcopy(layer)):
        before = [states.clone() for states in layer.update(*fresh(2, seed=1))]
        twin.update(*fresh(2, seed=2))
        assert layer.keys.equal(before[0])
        assert layer.values.equal(before[1])
        assert torch.as_tensor(twin.keys)[..., 5:7, :].equal(fresh(2, seed=2)[0])
        layer.keys, layer.values = (states[..., :-2, :] for states in map(torch.as_tensor, (layer.keys, layer.values)))


def test_gradients_of_earlier_passes_survive_later_ones():
    keys, values = (states.clone().requires_grad_() for states in fresh(4))
    layer = GrowingLayer()
    loss = layer.update(keys, values)[0].square().sum()
    layer.update(*fresh(2))
    loss.backward()
    assert keys.grad is not None
    assert keys.grad.equal(2 * keys)


def test_leaving_inference_mode():
    layer = GrowingLayer()
    with torch.inference_mode():
        layer.update(*fresh(4))
    with torch.no_grad():
        keys, _ = layer.update(*fresh(2, seed=1))
    assert keys.equal(torch.cat([fresh(4)[0], fresh(2, seed=1)[0]], dim=-2))


def test_pickled_layers_hold_the_same():
    file = io.BytesIO()
    torch.save(filled(GrowingLayer()), file)
    file.seek(0)
    layer = torch.load(file, weights_only=False)
    assert layer.update(*fresh(1))[0][..., :5, :].equal(fresh(5)[0])


def test_layers_of_a_cache_are_exchanged_and_back():
    cache = DynamicCache()
    cache.update(*fresh(3), 0)
    use_growing_layers(cache)
    cache.update(*fresh(2, seed=1), 0)
    cache.update(*fresh(2, seed=1), 1)
    assert [type(layer) for layer in cache.layers] == [GrowingLayer, GrowingLayer]
    use_dynamic_layers(cache)
    assert [type(layer) for layer in cache.layers] == [DynamicLayer, DynamicLayer]
    assert cache.layers[0].keys.shape[-2] == 5
    assert "_buffers" not in vars(cache.layers[0])
    cache.update(*fresh(2), 2)
    assert type(cache.layers[2]) is DynamicLayer


def test_transformers_own_classes_stay():
    assert GrowingLayer not in DYNAMIC_LAYER_TYPE_MAPPING.values()
