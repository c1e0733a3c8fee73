"""Cases of tree passes' operators that no model of the zoo shows; that they are those of paths: test_sequences.py."""

import pytest
import torch
from helpers.zoo import config_of

from treespec.errors import UnsupportedModelError
from treespec.hf.recurrent.convolution import tree_convolution
from treespec.hf.recurrent.delta_rule import tree_delta_rule
from treespec.hf.recurrent.layers import HybridLayer, StateLayer, TreePass, state_cache
from treespec.hf.recurrent.nodes import TreeNodes

CPU = torch.device("cpu")
PARENTS = torch.tensor([[-1, 0, 0, 1, 1, 3, 5, 2]])


def test_large_decays_do_not_overflow():
    """Far nodes have decayed to nothing, their differences to other branches must not become infinite."""
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(1, 8, heads, 4, generator=generator) for heads in (2, 2, 4))
    rates = torch.rand(1, 8, 4, generator=generator)
    layer = StateLayer()
    layer.update_conv_state(torch.zeros(1, 1, 1), conv_kernel_size=1)
    layer.update_recurrent_state(torch.randn(1, 4, 4, 4, generator=generator))
    tree_pass = TreePass(TreeNodes(PARENTS, 8, CPU), layer)
    layer.begin(tree_pass)
    assert tree_delta_rule(tree_pass, query, key, value, -200 * rates, rates)[0].isfinite().all()


@pytest.mark.parametrize(("num_held", "size"), [(0, 3), (2, 4), (9, 3)])
def test_convolutions_read_the_nearest_ancestors(num_held, size):
    """Also where fewer tokens are cached than a convolution looks back on, and where the cache holds one more."""
    generator = torch.Generator().manual_seed(num_held)
    held, inputs = (torch.randn(1, 5, count, generator=generator) for count in (num_held, 8))
    weight, layer = torch.randn(5, size, generator=generator), HybridLayer() if size == 3 else StateLayer()
    if num_held:
        layer.update_conv_state(held, conv_kernel_size=4)
    tree_pass = TreePass(TreeNodes(PARENTS, 8, CPU))
    layer.begin(tree_pass)
    found = tree_convolution(tree_pass, layer.update_conv_state(inputs, conv_kernel_size=4), weight)
    paths = [[0], [0, 1], [0, 2], [0, 1, 3], [0, 1, 4], [0, 1, 3, 5], [0, 1, 3, 5, 6], [0, 2, 7]]
    for node, path in enumerate(paths):
        text = torch.cat([torch.zeros(5, size), held[0], inputs[0][:, path]], 1)
        torch.testing.assert_close(found[0, :, node], (text[:, -size:] * weight).sum(1))


def test_unknown_cache_layers_are_named():
    with pytest.raises(UnsupportedModelError, match="DynamicIndexedLayer"):
        state_cache(config_of("glm_moe_dsa"))
