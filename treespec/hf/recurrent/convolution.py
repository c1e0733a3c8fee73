"""Short causal convolutions over nodes: each reads its nearest ancestors, then the inputs that the cache holds."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformers.activations import ACT2FN

from treespec.hf.recurrent.layers import TreePass
from treespec.hf.recurrent.nodes import along


def tree_convolution(
    tree_pass: TreePass,
    inputs: Float[Tensor, "B channels _"],
    weight: Float[Tensor, "channels width"],
    bias: Float[Tensor, " channels"] | None = None,
    activation: str | None = None,
    **_: Any,
) -> Float[Tensor, "B channels F"]:
    """Replaces `causal_conv1d_fn`; the inputs are the cached ones, then those of the N pending nodes."""
    nodes = tree_pass.nodes
    num_held = inputs.shape[-1] - nodes.parents.shape[1]
    columns = nodes.windows(weight.shape[-1]) + num_held
    windows = along(inputs, columns.flatten(1), -1).to(weight.dtype)
    # Windows are side by side: with a smaller stride some would reach into the next one.
    result = torch.nn.functional.conv1d(
        windows, weight.unsqueeze(1), bias, stride=weight.shape[-1], groups=weight.shape[0]
    )
    return (result if activation is None else ACT2FN[activation](result)).to(inputs.dtype)
