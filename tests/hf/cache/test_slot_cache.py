"""Cache commits: what is kept is what a fresh pass over the committed tokens would cache, and nothing piles up."""

import pytest
import torch
from helpers.rounds import Game, cache_error, prefilled
from helpers.zoo import VOCAB_SIZE, build
from transformers import Cache, DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer, StaticLayer

from treespec.errors import TreespecError, UnsupportedModelError
from treespec.hf import TreeScorer
from treespec.hf.attention.mask import tree_attention_mask
from treespec.hf.cache.caches import is_filled, new_cache
from treespec.hf.cache.growing import LEAST_SPARE
from treespec.hf.cache.slot_cache import commit_cache
from treespec.hf.introspect import CACHE_NAME
from treespec.tree import TokenTree, TreeBatch

TOLERANCE = 1e-4
PATHS = ["[(0,), (1,), (0, 0), (1, 0), (1, 1), (1, 1, 0)]", "[(0,), (1,), (2,), (2, 0)]", "[(0,)]"]
ACCEPTED = [(0, 2, 5, 6), (0, 3), (0,)]


def trees(num_rows):
    generator = torch.Generator().manual_seed(5)
    return TreeBatch.from_trees(
        [
            TokenTree.from_paths(paths, torch.randint(1, VOCAB_SIZE, (paths.count("(") + 1,), generator=generator))
            for paths in PATHS[:num_rows]
        ]
    )


def committed(model, num_rows, is_static):
    """A hand-written step: prefill, one tree pass, one commit. Returns the cache, its slots and the rows' tokens."""
    prompt = torch.randint(1, VOCAB_SIZE, (num_rows, 12), generator=torch.Generator().manual_seed(1))
    cache = new_cache(model.config.num_hidden_layers, 32 if is_static else None)
    batch = trees(num_rows)
    with torch.no_grad():
        model(input_ids=prompt, **{CACHE_NAME: cache}, use_cache=True)
        attention = tree_attention_mask(batch, prompt.shape[1], model.config, num_slots=32 if is_static else None)
        model(
            input_ids=batch.tokens,
            attention_mask=attention.mask,
            position_ids=attention.position_ids,
            **{CACHE_NAME: cache},
            use_cache=True,
        )
    slots = commit_cache(cache, torch.ones_like(prompt, dtype=torch.bool), ACCEPTED[:num_rows])
    rows = [torch.cat([prompt[b], batch.tokens[b, list(ACCEPTED[b])]]) for b in range(num_rows)]
    return cache, slots, rows


@pytest.mark.parametrize(("num_rows", "is_static"), [(1, False), (3, False), (3, True)])
@pytest.mark.parametrize("name", ["gemma3_text", "deepseek_v3"])
def test_commit_keeps_what_a_fresh_pass_would_cache(name, num_rows, is_static):
    model = build(name)
    cache, slots, rows = committed(model, num_rows, is_static)
    assert slots.sum(1).tolist() == [12 + len(path) for path in ACCEPTED[:num_rows]]
    assert int(cache.get_seq_length()) == slots.shape[1] == 16
    assert cache_error(model, cache, slots, rows) <= TOLERANCE


def test_integrity_check_sees_wrong_slots():
    model = build("llama")
    cache, slots, rows = committed(model, 3, False)
    assert cache_error(model, cache, slots, [rows[0], rows[1][:-1], rows[2]]) == float("inf")
    assert cache_error(model, cache, slots.roll(1, 1), rows) > 0.1
    assert cache_error(model, cache, slots, [rows[0].flip(0), *rows[1:]]) > 0.1


def test_neither_holes_nor_memory_pile_up_in_growing_caches():
    """Rows that accept unequally leave holes; a repack closes them before they are more than an eighth."""
    model = build("llama")
    scorer = prefilled(TreeScorer(model), torch.ones(2, 8, dtype=torch.int64))
    chain = torch.tensor([[-1, 0, 1]]).expand(2, -1)
    for number in range(200):
        scorer.extend(torch.ones(2, 3, dtype=torch.int64), chain)
        scorer.commit([[0], [0, 1, 2]] if number % 2 else [[0, 1, 2], [0]])
    longest = max(scorer._state.lengths)
    assert scorer._state.lengths == [8 + 400, 8 + 400]
    assert longest <= scorer._state.num_slots <= longest * 8 / 7 + 1
    assert scorer._state.slots.mask.sum(1).tolist() == scorer._state.lengths
    states = [states for layer in scorer.cache.layers for states in (layer.keys, layer.values) if states is not None]
    storages = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in states}
    per_slot = sum(one[:, :, :1].numel() * one.element_size() for one in states)
    # A buffer may stem from when an eighth of the slots were holes.
    assert sum(storages.values()) <= per_slot * (1.25 * (scorer._state.num_slots + 3 + 8) * 8 / 7 + LEAST_SPARE)


def test_rows_left_alone_lose_their_padding_and_with_it_their_mask():
    model = build("llama")
    scorer = TreeScorer(model)
    game = Game(model, scorer, [14, 9])
    game.round()
    game.select_rows([1])
    assert scorer._state.slots.is_contiguous
    assert scorer.cache.get_seq_length() == len(game.rows[0])
    assert game.play(2) <= TOLERANCE


def test_one_row_is_compacted_in_place():
    scorer = prefilled(TreeScorer(build("llama")), torch.ones(1, 20, dtype=torch.int64))
    before = None
    for path in ([0, 2], [0, 1], [0, 2]):
        scorer.extend(torch.tensor([[1, 2, 3]]), torch.tensor([[-1, 0, 0]]))
        scorer.commit([path])
        addresses = [layer.keys.data_ptr() for layer in scorer.cache.layers]
        assert before in (None, addresses)  # The first commit lays the layers together.
        before = addresses


class UnknownLayer(DynamicLayer):
    pass


def test_caches_that_cannot_take_nodes_back_are_refused():
    offloaded, windowed = DynamicCache(), Cache(layers=[DynamicLayer(), DynamicSlidingWindowLayer(8)])
    offloaded.offloading = True
    for cache, message in (
        (offloaded, "offloaded"),
        ((), "tuple"),
        (windowed, "cache layer 1 is a DynamicSlidingWindowLayer"),
        (Cache(layers=[UnknownLayer()]), "cache layer 0 is a UnknownLayer"),
    ):
        with pytest.raises(UnsupportedModelError, match=message):
            commit_cache(cache, torch.ones(1, 4, dtype=torch.bool), [[0]])  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(("paths", "message"), [([[0, 9]], "outside the 3"), ([[0], [0]], "one path for each of 1")])
def test_wrong_paths_are_refused(paths, message):
    cache = DynamicCache()
    states = torch.ones(1, 2, 7, 4)
    cache.update(states, states, 0)
    with pytest.raises(TreespecError, match=message):
        commit_cache(cache, torch.ones(1, 4, dtype=torch.bool), paths)


def test_filled_and_empty_caches():
    assert not is_filled(DynamicCache())
    assert not is_filled(Cache(layers=[StaticLayer(max_cache_len=8)]))
    cache = Cache(layers=[StaticLayer(max_cache_len=8)])
    cache.update(torch.ones(1, 1, 2, 4), torch.ones(1, 1, 2, 4), 0)
    assert is_filled(cache)


def test_a_plain_cache_filled_in_inference_mode_is_committed_to_outside_of_it():
    cache = DynamicCache()
    with torch.inference_mode():
        cache.update(torch.arange(6.0).view(1, 1, 6, 1), torch.arange(6.0).view(1, 1, 6, 1), 0)
    slots = commit_cache(cache, torch.ones(1, 3, dtype=torch.bool), [(0, 2)])
    assert slots.tolist() == [[True] * 5]
    for states in (cache.layers[0].keys, cache.layers[0].values):
        assert states.flatten().tolist() == [0, 1, 2, 3, 5]
