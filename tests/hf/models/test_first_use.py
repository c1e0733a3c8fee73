"""How many passes a model's first use takes: few where trees pass by the least tolerance, more where they do not."""

from unittest.mock import patch

import pytest
import torch
from helpers.rounds import PLANTED
from helpers.zoo import build
from torch import nn

from treespec.hf import make_scorer
from treespec.protocols import Capability

MOST_PASSES = 5


def first_use(model, **options):
    """The capability of a model's scorer, and how many passes its first use took."""
    with patch.object(nn.Embedding, "forward", autospec=True, side_effect=nn.Embedding.forward) as embed:
        return make_scorer(model, **options).capability, embed.call_count


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("options", [{}, {"max_cache_len": 64}], ids=["growing", "static"])
def test_a_model_that_is_right_takes_few_passes(options, dtype):
    model = build("llama").to(dtype)
    capability, num_passes = first_use(model, **options)
    assert capability == Capability.TREE
    assert 0 < num_passes <= MOST_PASSES
    assert first_use(model, **options) == (Capability.TREE, 0)


@pytest.mark.filterwarnings("ignore::treespec.TreespecWarning")
def test_what_counts_as_rounding_is_measured_where_trees_differ(monkeypatch):
    PLANTED["siblings seen"][1](monkeypatch)
    capability, num_passes = first_use(build("llama"))
    assert capability != Capability.TREE
    assert num_passes > 2 * MOST_PASSES
