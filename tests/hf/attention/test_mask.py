"""Tree attention masks against networkx ancestors, in every form that models take; planted bugs: helpers/rounds.py."""

from typing import get_args

import networkx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import BambaConfig, LlamaConfig, PreTrainedConfig

from treespec.errors import InvalidTreeError, UnsupportedModelError
from treespec.hf.attention.mask import (
    AttentionLayout,
    CachedSlots,
    Reach,
    attention_layout,
    pending_attention,
    tree_attention_mask,
)
from treespec.tree import TokenTree


def with_attention(config: PreTrainedConfig, attention: str) -> PreTrainedConfig:
    config._attn_implementation = attention
    return config


def oracle(parents: list[list[int]], cached: list[list[bool]], reach: Reach, num_slots: int | None = None):
    """bool [B, N, K] and positions int64 [B, N], node by node over networkx graphs."""
    num_nodes, num_cached = len(parents[0]), len(cached[0])
    mask = torch.zeros(len(parents), num_nodes, num_slots or num_cached + num_nodes, dtype=torch.bool)
    positions = torch.zeros(len(parents), num_nodes, dtype=torch.int64)
    for row, (above, valid) in enumerate(zip(parents, cached, strict=True)):
        graph = networkx.DiGraph([(parent, node) for node, parent in enumerate(above) if parent >= 0])
        graph.add_nodes_from(range(num_nodes))
        position = {slot: sum(valid[:slot]) for slot in range(num_cached) if valid[slot]}
        for node in range(num_nodes):
            ancestors = networkx.ancestors(graph, node)
            position[num_cached + node] = sum(valid) + len(ancestors)
            positions[row, node] = position[num_cached + node]
        for node in range(num_nodes):
            seen = {num_cached + other for other in networkx.ancestors(graph, node) | {node}}
            seen |= {slot for slot in range(num_cached) if valid[slot]}
            for slot in seen:
                mask[row, node, slot] = is_near(position[num_cached + node], position[slot], reach)
    return mask, positions


def is_near(query: int, key: int, reach: Reach) -> bool:
    """The rules again, without tensors; a kind that is missing here raises `KeyError`."""
    return {
        "full": lambda: True,
        "sliding": lambda: query - key < reach.size,
        "chunked": lambda: query // reach.size == key // reach.size,
    }[reach.kind]()


@st.composite
def forests(draw, max_nodes: int = 9):
    """Parents int [B][N] of trees of different sizes (some nodes on the last committed token) and cached slots."""
    num_rows, width = draw(st.integers(1, 3)), draw(st.integers(1, max_nodes))
    num_cached = draw(st.integers(0, 12))
    parents = []
    for _ in range(num_rows):
        size = draw(st.integers(0, width))
        row = [draw(st.integers(-1, node - 1)) for node in range(size)]
        parents.append(row + [-2] * (width - size))
    cached = [[draw(st.booleans()) for _ in range(num_cached)] for _ in range(num_rows)]
    return parents, cached


REACHES = [Reach("full"), Reach("sliding", 3), Reach("chunked", 4)]


def test_every_kind_of_reach_is_tested():
    kinds = get_args(Reach.__annotations__["kind"])
    assert {reach.kind for reach in REACHES} == set(kinds)


@settings(max_examples=150, deadline=None)
@given(forests(), st.sampled_from(REACHES), st.booleans(), st.data())
def test_masks_and_positions_are_those_of_networkx(case, reach, is_static, data):
    parents, cached = case
    num_slots = len(cached[0]) + len(parents[0]) + 5 if is_static else None
    slots = CachedSlots(torch.tensor(cached, dtype=torch.bool).view(len(cached), -1), False, num_slots)
    num_new = data.draw(st.integers(1, len(parents[0])))
    layout = AttentionLayout("sdpa", {None: reach})
    attention = pending_attention(slots, torch.tensor(parents), num_new, layout, torch.float32)
    expected, positions = oracle(parents, cached, reach, num_slots)
    assert isinstance(attention.mask, torch.Tensor)
    assert attention.mask.dtype == torch.bool
    assert torch.equal(attention.mask[:, 0], expected[:, -num_new:])
    assert torch.equal(attention.position_ids, positions[:, -num_new:])
    assert attention.mask.any(-1).all(), "every query needs a key"


TREE = TokenTree.from_paths("[(0,), (1,), (1, 0)]", [1, 2, 3, 4])
CHAIN = TokenTree.chain([1, 2, 3])
SINGLE = TokenTree.chain([1])


def mask_of(trees, cached, attention="sdpa", **options):
    return tree_attention_mask(trees, cached, with_attention(LlamaConfig(), attention), **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sdpa_takes_bool_and_eager_additive(dtype):
    allowed, mask = mask_of(TREE, 5).mask, mask_of(TREE, 5, "eager", dtype=dtype).mask
    assert isinstance(allowed, torch.Tensor)
    assert isinstance(mask, torch.Tensor)
    assert (allowed.dtype, allowed.shape, mask.dtype) == (torch.bool, (1, 1, 4, 9), dtype)
    assert torch.equal(mask == 0, allowed)
    assert torch.equal(mask == torch.finfo(dtype).min, ~allowed)


@pytest.mark.parametrize("trees", [[CHAIN], [SINGLE], [CHAIN, SINGLE]], ids=["chain", "single", "batch"])
def test_chains_over_whole_caches_are_left_to_the_models_own_mask(trees):
    """That it is right there is tested with the models."""
    for cached in (20, torch.ones(len(trees), 20, dtype=torch.bool)):
        attention = mask_of(trees, cached)
        assert attention.mask is None
        assert attention.position_ids[0].tolist() == [20 + i for i in range(attention.position_ids.shape[1])]


def test_chains_over_padding_or_holes_or_next_to_trees_have_a_mask():
    for hole in (0, 3):
        cached = torch.arange(6).unsqueeze(0) != hole
        assert mask_of(CHAIN, cached).mask is not None
        assert mask_of(CHAIN, cached).position_ids.tolist() == [[5, 6, 7]]
    for trees in ([CHAIN, TREE], [TREE, CHAIN]):
        assert mask_of(trees, 6).mask is not None


def test_layers_that_are_not_attention_are_refused():
    with pytest.raises(UnsupportedModelError, match="linear_attention"):
        attention_layout(with_attention(BambaConfig(attn_layer_indices=[1], num_hidden_layers=2), "sdpa"))


@pytest.mark.parametrize(
    "cached", [torch.ones(2, 5, dtype=torch.bool), torch.ones(1, 5), torch.ones(5, dtype=torch.bool)]
)
def test_cached_slots_of_another_batch_are_refused(cached):
    with pytest.raises(InvalidTreeError, match=r"bool \[1, S\]"):
        mask_of(TREE, cached)
