"""Parameters and buffers of the suite's models all move to a GPU."""

import torch
from helpers.on_device import MixedInTests, to_real_device
from torch import nn


def test_parameters_and_buffers_are_moved() -> None:
    """`nn.Module.to` sets the data of parameters, an operation over two devices as a test's own may be."""
    module, device = nn.BatchNorm1d(2), torch.device("meta")
    with MixedInTests(device):
        to_real_device(module, device)
    assert all(tensor.is_meta for tensor in (*module.parameters(), *module.buffers()))
