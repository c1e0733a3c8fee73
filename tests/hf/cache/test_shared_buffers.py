"""Shared buffers: commits and selected rows leave what layer by layer they would, by few kernels."""

import copy
import random

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import Cache
from transformers.cache_utils import DynamicLayer

from treespec.hf.cache import shared_buffers
from treespec.hf.cache.caches import filled_layers, restore, snapshot, twin_cache
from treespec.hf.cache.growing import GrowingLayer
from treespec.hf.cache.slot_cache import SlotCache

next_slots = GrowingLayer._next_slots
NUM_LAYERS = 5


def states(layer, num_rows, length, generator):
    """Keys and values; those of layer 3 have other sizes, and its values another one than its keys."""
    heads, sizes = (2, (4, 6)) if layer == 3 else (3, (4, 4))
    return [torch.randn(num_rows, heads, length, size, generator=generator) for size in sizes]


def caches(num_rows, length=6):
    """One cache of growing layers and one of transformers' own, with the same tokens."""
    both = [Cache(layers=[kind() for _ in range(NUM_LAYERS)]) for kind in (GrowingLayer, DynamicLayer)]
    generator = torch.Generator().manual_seed(0)
    append(both, num_rows, length, generator)
    return both, generator


def append(both, num_rows, length, generator):
    for layer in range(NUM_LAYERS):
        fresh = states(layer, num_rows, length, generator)
        for cache in both:
            cache.update(*fresh, layer)


def assert_equal(both):
    for ours, theirs in zip(*(filled_layers(cache) for cache in both), strict=True):
        assert ours.keys.equal(theirs.keys)
        assert ours.values.equal(theirs.values)


def slots(cache, num_rows, length=6):
    return SlotCache(cache, torch.ones(num_rows, length, dtype=torch.bool), [length] * num_rows)


@pytest.mark.parametrize(("num_rows", "most_bytes"), [(1, 1), (1, 1 << 20), (3, 2000), (3, 1 << 20)])
def test_equals_layers_of_their_own(monkeypatch, num_rows, most_bytes):
    monkeypatch.setattr(shared_buffers, "MOST_BYTES", most_bytes)
    choose = random.Random(num_rows)
    both, generator = caches(num_rows)
    engines = [slots(cache, num_rows) for cache in both]
    for _ in range(40):
        num_nodes = choose.randint(2, 9)
        for engine in engines:
            engine.append(num_nodes)
        append(both, num_rows, num_nodes, generator)
        paths = [sorted(choose.sample(range(num_nodes), choose.randint(1, num_nodes))) for _ in range(num_rows)]
        for engine in engines:
            engine.commit(paths)
        assert_equal(both)
        if num_rows > 1 and choose.random() < 0.1:
            num_rows -= 1
            for engine in engines:
                engine.select_rows(range(1, num_rows + 1))
            assert_equal(both)


class Counter(TorchDispatchMode):
    """Counts kernels that compute or copy, not views."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func.overloadpacket in (
            torch.ops.aten.index_select,
            torch.ops.aten.gather,
            torch.ops.aten.copy_,
            torch.ops.aten.stack,
        )
        return func(*args, **(kwargs or {}))


def test_a_commit_takes_two_kernels_per_shape():
    both, generator = caches(1)
    engine = slots(both[0], 1)
    counts = []
    for _ in range(3):
        for run in (lambda: engine.append(4), lambda: engine.commit([[0, 2]])):
            with Counter() as counter:
                run()
            counts.append(counter.count)
            append(both[:1], 1, 4, generator) if len(counts) % 2 else None
    assert counts[0] > 0  # The layers are laid together, before the pass.
    assert counts[1:] == [6, 0, 6, 0, 6]  # Layer 3 has two further shapes.


@pytest.mark.parametrize("num_tokens", [3, 4, 5])
def test_a_pass_over_as_many_tokens_as_expected_makes_no_views(num_tokens, monkeypatch):
    """One over more or fewer is right too."""
    both, generator = caches(2)
    engine = slots(both[0], 2)
    engine.append(4)
    found = []
    monkeypatch.setattr(GrowingLayer, "_next_slots", lambda *args: found.append(0) or next_slots(*args))
    append(both, 2, num_tokens, generator)
    assert_equal(both)
    assert len(found) == (0 if num_tokens == 4 else NUM_LAYERS)


def test_what_leaves_the_buffers_is_laid_together_again():
    """A caller that replaces a layer's tensors, in any way, gets right commits."""
    changes = [
        lambda layer: layer.crop(-1) or layer.update(*states(0, 2, 1, torch.Generator().manual_seed(1))),
        lambda layer: setattr(layer, "keys", layer.keys.flip(1)),
        lambda layer: setattr(layer, "values", layer.values.clone()),
    ]
    both, generator = caches(2)
    engines = [slots(cache, 2) for cache in both]
    for change in [lambda layer: None, *changes, lambda layer: None]:
        for engine, cache in zip(engines, both, strict=True):
            engine.append(5)
            change(cache.layers[1])
        append(both, 2, 5, generator)
        for engine in engines:
            engine.commit([[0, 2, 4], [0, 1, 3]])
        assert_equal(both)


def test_copies_and_snapshots_stay_what_they_were():
    both, generator = caches(2)
    engine = slots(both[0], 2)
    for round_number in range(3):
        kept = [twin_cache(both[0]), copy.deepcopy(both[0])]
        saved, before = snapshot(both[0]), copy.deepcopy(both[1])
        engine.append(4)
        append(both[:1], 2, 4, generator)
        engine.commit([[0, 3], [0, 2]])
        for cache in kept:
            assert_equal([cache, before])
        if round_number == 1:
            restore(both[0], saved)
            assert_equal([both[0], before])
            engine = SlotCache(both[0], torch.ones(2, both[0].get_seq_length(), dtype=torch.bool), [8, 8])
        both[1] = copy.deepcopy(both[0])


def test_buffers_of_inference_mode_are_left_outside_of_it():
    both, generator = caches(1)
    engine = slots(both[0], 1)
    with torch.inference_mode():
        engine.append(4)
        append(both[:1], 1, 4, generator)
        engine.commit([[0, 2]])
    both[1] = copy.deepcopy(both[0])
    engines = [engine, slots(both[1], 1, 8)]
    for one in engines:
        one.append(4)
    append(both, 1, 4, generator)
    for one in engines:
        one.commit([[0, 3]])
    assert_equal(both)


def test_gradients_reach_the_keys():
    keys, values = (torch.randn(1, 3, 6, 4, requires_grad=True) for _ in range(2))
    cache = Cache(layers=[GrowingLayer(), GrowingLayer()])
    for layer in range(2):
        cache.update(keys * 1, values * 1, layer)
    engine = slots(cache, 1, 2)
    engine.append(4)
    engine.commit([[0, 3]])
    sum(layer.keys.sum() for layer in filled_layers(cache)).backward()
    assert torch.as_tensor(keys.grad)[0, 0, :, 0].tolist() == [2, 2, 2, 0, 0, 2]


@pytest.mark.parametrize("num_rows", [1, 2])
def test_a_cache_is_copied_once_where_it_has_no_room(num_rows):
    """Whether it came with tokens or is full: by the slot cache, before the pass, never layer by layer."""
    (cache, _), generator = caches(num_rows)
    given = Cache(layers=[GrowingLayer() for _ in range(NUM_LAYERS)])
    for layer, filled in zip(given.layers, cache.layers, strict=True):
        DynamicLayer.update(layer, filled.keys, filled.values)
    engine, moved = slots(given, num_rows), 0
    for _ in range(60):
        before = given.layers[0].keys.data_ptr()
        engine.append(8)
        is_moved = given.layers[0].keys.data_ptr() != before
        addresses = [layer.keys.data_ptr() for layer in given.layers]
        append([given], num_rows, 8, generator)
        engine.commit([(0, 2, 3)] * num_rows)
        assert [layer.keys.data_ptr() for layer in given.layers] == addresses
        moved += is_moved
    assert 2 <= moved <= 6
