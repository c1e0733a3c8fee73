"""Static caches and compiled passes on a GPU, with and without CUDA graphs: texts are plain `generate`'s."""

import pytest
import torch
from helpers.gpu import DEVICE, on, pair
from helpers.tiny import identical, lookups, padded, prompt

from treespec import TreeSpeculation
from treespec.hf import make_draft_model

COMPILERS = {
    "graphs alone": {"backend": "cudagraphs"},
    "inductor": {},
    "inductor with graphs": {"mode": "reduce-overhead"},
}
compiled = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
"""PyTorch's advice on TF32, and its own deprecated calls."""


@pytest.fixture(scope="module")
def models():
    return pair()


@pytest.fixture
def fresh_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@compiled
@pytest.mark.needs_gpu
@pytest.mark.parametrize("who", ["target", "draft"])
@pytest.mark.parametrize("compiler", COMPILERS)
def test_compiled_passes(models, fresh_compiler, compiler, who):
    """Two calls of several lengths: the second replays what the first compiled."""
    target, draft = models
    options, tree = COMPILERS[compiler], [(0,), (1,), (0, 0)]
    drafter = make_draft_model(draft, static_cache_len=80, compile=options) if who == "draft" else draft
    speculation = TreeSpeculation(drafter, tree=tree, compile=options if who == "target" else False)
    for length in (12, 9, 12):
        identical(target, prompt(1, length, seed=length).to(DEVICE), speculation, max_new_tokens=24)
    assert speculation.total_stats.num_accepted_tokens > 0


@compiled
@pytest.mark.needs_gpu
def test_compiled_by_graphs_in_batches(models, fresh_compiler):
    speculation = lookups(tree=4, compile={"backend": "cudagraphs"})
    identical(models[0], on(DEVICE, padded(prompt(3, 14), [0, 5, 2])), speculation, times=2, max_new_tokens=24)
