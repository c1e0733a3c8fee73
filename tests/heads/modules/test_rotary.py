"""Rotary embeddings: the frequencies of every scaling are those of transformers."""

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from treespec.heads.modules.rotary import Rotary, rope_settings, rotate

ROPES = [
    {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 512,
    },
    {
        "rope_type": "yarn",
        "rope_theta": 1000000.0,
        "factor": 40.0,
        "original_max_position_embeddings": 256,
        "beta_fast": 16,
        "beta_slow": 2,
        "mscale": 1.0,
        "mscale_all_dim": 0.7,
    },
]


@pytest.mark.parametrize("settings", ROPES, ids=lambda settings: settings["rope_type"])
def test_rotary_frequencies_are_those_of_transformers(settings):
    config = LlamaConfig(
        hidden_size=64, num_attention_heads=2, head_dim=32, max_position_embeddings=4096, rope_parameters=settings
    )
    rotary = Rotary(32, rope_settings(config.to_dict()), 4096)
    frequencies, scale = ROPE_INIT_FUNCTIONS[settings["rope_type"]](config, torch.device("cpu"))
    torch.testing.assert_close(rotary.inv_freq, frequencies)
    heads, positions = torch.randn(1, 3, 2, 32, generator=torch.Generator().manual_seed(0)), torch.tensor([[0, 7, 900]])
    angles = positions[0, :, None, None] * frequencies
    turned = torch.complex(*heads.chunk(2, -1)) * torch.polar(torch.full_like(angles, scale), angles)
    expected = torch.cat([turned.real, turned.imag], -1)
    torch.testing.assert_close(rotate(heads, rotary(positions, torch.float32)), expected, atol=1e-4, rtol=1e-4)
