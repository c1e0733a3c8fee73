"""Convolutions and recurrences over random trees against single steps along every node's path, in float64."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest
import torch
from helpers.zoo import config_of
from transformers.cache_utils import LinearAttentionLayer

from treespec.errors import UnsupportedModelError
from treespec.hf.recurrent.convolution import tree_convolution
from treespec.hf.recurrent.delta_rule import tree_delta_rule
from treespec.hf.recurrent.layers import HybridLayer, StateLayer, TreePass, state_cache
from treespec.hf.recurrent.nodes import Paths, TreeNodes
from treespec.hf.recurrent.selective_scan import tree_selective_scan
from treespec.hf.recurrent.ssd import tree_ssd

NUM_ROWS, NUM_NODES, NUM_HEADS, SIZE, WIDE = 3, 12, 2, 4, 6
CPU = torch.device("cpu")


def rand(*shape):
    return torch.randn(NUM_ROWS, NUM_NODES, *shape)


class Delta:
    """The gated delta rule with a decay per head."""

    state_shape = (NUM_HEADS * 2, SIZE, WIDE)
    decay_shape: tuple[int, ...] = (NUM_HEADS * 2,)

    def __init__(self):
        heads = NUM_HEADS * 2
        self.inputs = {
            "query": rand(NUM_HEADS, SIZE),
            "key": rand(NUM_HEADS, SIZE),
            "value": rand(heads, WIDE),
            "g": -rand(*self.decay_shape).abs(),
            "beta": rand(heads).sigmoid(),
        }
        self.options = {"use_qk_l2norm_in_kernel": True}

    operator = staticmethod(tree_delta_rule)

    def step(self, state, query, key, value, g, beta):
        query, key = (part / part.norm(dim=-1, keepdim=True) for part in (query, key))
        query, key = (part.repeat_interleave(len(value) // len(key), 0) for part in (query, key))
        state = state * (g if g.ndim == 2 else g[:, None]).exp().unsqueeze(-1)
        written = beta[:, None] * (value - (state * key.unsqueeze(-1)).sum(1))
        state = state + key.unsqueeze(-1) * written.unsqueeze(1)
        return state, (state * query.unsqueeze(-1)).sum(1) * SIZE**-0.5


class DeltaByChannel(Delta):
    """Kimi's: a decay per channel of the keys."""

    state_shape = (NUM_HEADS, SIZE, WIDE)
    decay_shape = (NUM_HEADS, SIZE)

    def __init__(self):
        super().__init__()
        self.inputs["value"], self.inputs["beta"] = rand(NUM_HEADS, WIDE), rand(NUM_HEADS).sigmoid()


class SSD:
    """Mamba-2: two heads per group; single steps know no limit to their sizes."""

    state_shape = (NUM_HEADS * 2, WIDE, SIZE)
    operator = staticmethod(tree_ssd)

    def __init__(self):
        heads = NUM_HEADS * 2
        self.inputs = {
            "hidden_states": rand(heads, WIDE),
            "dt": rand(heads),
            "B": rand(NUM_HEADS, SIZE),
            "C": rand(NUM_HEADS, SIZE),
        }
        self.options: dict[str, Any] = {"A": -torch.rand(heads), "D": torch.randn(heads), "dt_bias": torch.randn(heads)}
        self.options |= {"dt_softplus": True, "dt_limit": (0.1, 1.5), "chunk_size": 16}

    def step(self, state, hidden, dt, B, C):
        dt = torch.nn.functional.softplus(dt + self.options["dt_bias"])
        B, C = B.repeat_interleave(2, 0), C.repeat_interleave(2, 0)
        state = state * (dt * self.options["A"]).exp()[:, None, None]
        state = state + (dt[:, None] * hidden).unsqueeze(-1) * B.unsqueeze(1)
        return state, (state * C.unsqueeze(1)).sum(-1) + self.options["D"][:, None] * hidden


class Selective:
    """Mamba-1; its inputs have their tokens last."""

    state_shape = (WIDE, SIZE)

    def __init__(self):
        self.inputs = {"hidden_states": rand(WIDE), "dt": rand(WIDE), "B": rand(SIZE), "C": rand(SIZE), "z": rand(WIDE)}
        self.options = {"A": -torch.rand(WIDE, SIZE), "D": torch.randn(WIDE), "delta_bias": torch.randn(WIDE)}
        self.options |= {"delta_softplus": True}

    def operator(self, tree_pass, **inputs):
        turned = {name: inputs[name].transpose(1, 2) for name in self.inputs}
        result, final = tree_selective_scan(tree_pass, **(inputs | turned))
        return result.transpose(1, 2), final

    def step(self, state, hidden, dt, B, C, z):
        dt = torch.nn.functional.softplus(dt + self.options["delta_bias"])
        state = state * (dt[:, None] * self.options["A"]).exp() + (dt * hidden)[:, None] * B
        return state, ((state * C).sum(-1) + self.options["D"] * hidden) * torch.nn.functional.silu(z)


KINDS = [Delta, DeltaByChannel, SSD, Selective]


def some_trees(seed: int) -> torch.Tensor:
    """Random parents; the last row has padding."""
    choice = random.Random(seed)
    rows = [[-1, *(choice.randrange(i) for i in range(1, NUM_NODES))] for _ in range(NUM_ROWS)]
    rows[-1][-3:] = [-2] * 3
    return torch.tensor(rows)


def path_to(parents: torch.Tensor, row: int, node: int) -> list[int]:
    path: list[int] = []
    while node >= 0:
        path.insert(0, node)
        node = int(parents[row, node])
    return path


def steps(kind: Any, state: torch.Tensor | None, row: int, path: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """The state after a path and what its last node reads, by one step after the other."""
    start = torch.zeros(kind.state_shape, dtype=torch.float64) if state is None else state[row].double()
    result, current = torch.empty(0), start
    for node in path:
        current, result = kind.step(current, *(part[row, node].double() for part in kind.inputs.values()))
    return current, result


def filled(state: torch.Tensor | None) -> StateLayer:
    layer = StateLayer()
    if state is not None:
        layer.update_conv_state(torch.zeros(NUM_ROWS, 1, 1), conv_kernel_size=1)
        layer.update_recurrent_state(state)
    return layer


def scan(kind: Any, layer: StateLayer, parents: torch.Tensor, cuts: list[int]) -> torch.Tensor:
    found = []
    for start, end in pairwise(cuts):
        tree_pass = TreePass(TreeNodes(parents[:, :end], end - start, CPU), layer)
        layer.begin(tree_pass)
        inputs = {name: part[:, start:end] for name, part in kind.inputs.items()}
        result, final = kind.operator(tree_pass, **inputs, **kind.options)
        assert final.shape == (NUM_ROWS, *kind.state_shape)
        layer.update_recurrent_state(final)
        layer.end()
        found.append(result)
    return torch.cat(found, 1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cuts", [[0, NUM_NODES], [0, 1, 4, NUM_NODES]], ids=["one pass", "several"])
@pytest.mark.parametrize("has_state", [True, False])
def test_nodes_read_their_paths_and_commits_keep_them(kind, cuts, has_state):
    torch.manual_seed(len(cuts))
    example, parents = kind(), some_trees(len(cuts))
    state = torch.randn(NUM_ROWS, *example.state_shape) if has_state else None
    layer = filled(None if state is None else state.clone())
    found = scan(example, layer, parents, cuts)
    for row in range(NUM_ROWS):
        for node in range(NUM_NODES):
            if parents[row, node] != -2:
                _, expected = steps(example, state, row, path_to(parents, row, node))
                assert torch.allclose(found[row, node].double(), expected, atol=1e-5), (row, node)
    if state is not None:
        assert torch.equal(layer.recurrent_states[0], state)
    paths = [path_to(parents, 0, NUM_NODES - 1), [], path_to(parents, 2, 5)]
    layer.commit(Paths.of(paths, CPU))
    for row, path in enumerate(paths):
        expected, _ = steps(example, state, row, path)
        assert torch.allclose(layer.recurrent_states[0][row].double(), expected, atol=1e-5)
    if state is not None:
        assert torch.equal(layer.recurrent_states[0][1], state[1])


@pytest.mark.parametrize("kind", KINDS)
def test_rejected_trees_leave_the_state_and_rows_can_leave(kind):
    torch.manual_seed(3)
    example, parents = kind(), some_trees(3)
    state = torch.randn(NUM_ROWS, *example.state_shape)
    layer = filled(state.clone())
    scan(example, layer, parents, [0, NUM_NODES])
    layer.commit(Paths.of([[], [], []], CPU))
    assert torch.equal(layer.recurrent_states[0], state)
    scan(example, layer, parents, [0, NUM_NODES])
    layer.select_rows(torch.tensor([2, 0]))
    paths = [path_to(parents, 2, 6), path_to(parents, 0, 7)]
    layer.commit(Paths.of(paths, CPU))
    for kept, (row, path) in enumerate(zip([2, 0], paths, strict=True)):
        assert torch.allclose(layer.recurrent_states[0][kept].double(), steps(example, state, row, path)[0], atol=1e-5)


def test_large_decays_do_not_overflow():
    """Far nodes have decayed to nothing, their differences to other branches must not become infinite."""
    torch.manual_seed(0)
    example = Delta()
    example.inputs["g"] = example.inputs["g"] * 200
    parents = some_trees(0)
    found = scan(example, filled(torch.randn(NUM_ROWS, *example.state_shape)), parents, [0, NUM_NODES])
    assert found.isfinite().all()


def test_a_prompts_last_token_has_limited_steps():
    """Plain decoding reads it with the prompt."""
    torch.manual_seed(0)
    example, parents = SSD(), some_trees(0)
    found = []
    for ends_prompt in (True, False):
        tree_pass = TreePass(TreeNodes(parents, NUM_NODES, CPU, ends_prompt), layer := filled(None))
        layer.begin(tree_pass)
        found.append(tree_ssd(tree_pass, **example.inputs, **(example.options | {"dt_limit": (3.0, 3.0)}))[0])
    assert not torch.allclose(found[0][:, 0], found[1][:, 0])
    example.inputs["dt"][:, 0] = 3.0 + torch.log(-torch.expm1(torch.tensor(-3.0))) - example.options["dt_bias"]
    assert torch.allclose(found[0], scan(example, filled(None), parents, [0, NUM_NODES]), atol=1e-5)


def convolve(layer: StateLayer, inputs, parents, cuts, weight, bias, activation="silu"):
    found = []
    for start, end in pairwise(cuts):
        tree_pass = TreePass(TreeNodes(parents[:, :end], end - start, CPU))
        layer.begin(tree_pass)
        seen = layer.update_conv_state(inputs[:, :, start:end], conv_kernel_size=4)
        assert tree_pass.layer is layer
        found.append(tree_convolution(tree_pass, seen, weight, bias, activation=activation))
        layer.end()
    return torch.cat(found, -1)


@pytest.mark.parametrize("cuts", [[0, NUM_NODES], [0, 1, 4, NUM_NODES]], ids=["one pass", "several"])
@pytest.mark.parametrize("num_held", [0, 2, 9])
@pytest.mark.parametrize("size", [3, 4])
def test_convolutions_read_the_nearest_ancestors(cuts, num_held, size):
    """Also where fewer tokens are cached than a convolution looks back on, and where the cache holds one more."""
    torch.manual_seed(num_held)
    parents, inputs = some_trees(num_held), torch.randn(NUM_ROWS, 5, NUM_NODES)
    weight, bias, held = torch.randn(5, size), torch.randn(5), torch.randn(NUM_ROWS, 5, num_held)
    layer = HybridLayer() if size == 3 else StateLayer()
    if num_held:
        layer.update_conv_state(held, conv_kernel_size=4)
    found = convolve(layer, inputs, parents, cuts, weight, bias)
    for row in range(NUM_ROWS):
        for node in range(NUM_NODES):
            if parents[row, node] != -2:
                text = torch.cat([torch.zeros(5, size), held[row], inputs[row][:, path_to(parents, row, node)]], 1)
                expected = torch.nn.functional.silu((text[:, -size:] * weight).sum(1) + bias)
                assert torch.allclose(found[row, :, node], expected, atol=1e-5)
    paths = [path_to(parents, 0, NUM_NODES - 1), [], path_to(parents, 2, 1)]
    layer.commit(Paths.of(paths, CPU))
    for row, path in enumerate(paths):
        text = torch.cat([torch.zeros(5, 4), held[row], inputs[row][:, path]], 1)
        assert torch.equal(layer.conv_states[0][row], text[:, -4:])


def test_layers_are_transformers_own_outside_of_tree_passes():
    ours, theirs = StateLayer(), LinearAttentionLayer()
    for layer in (ours, theirs):
        layer.update_conv_state(torch.arange(6.0).reshape(1, 1, 6), conv_kernel_size=3)
        layer.update_recurrent_state(torch.ones(1, 2))
        layer.update_conv_state(torch.ones(1, 1, 1), conv_kernel_size=3)
    assert torch.equal(ours.conv_states[0], theirs.conv_states[0])
    assert ours.has_previous_state == theirs.has_previous_state


def test_unknown_cache_layers_are_named():
    with pytest.raises(UnsupportedModelError, match="DynamicIndexedLayer"):
        state_cache(config_of("glm_moe_dsa"))
