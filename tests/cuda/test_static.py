"""Static caches and compiled passes on a GPU, with and without CUDA graphs: texts are plain `generate`'s."""

import pytest
import torch
from helpers.gpu import DEVICE, on, pair
from helpers.tiny import padded, prompt

from treespec import SuffixLookup, TokenRecycling, TreeSpeculation
from treespec.hf import make_draft_model

GREEDY = {"max_new_tokens": 24, "do_sample": False, "pad_token_id": 0}
INPUTS = {"one row": {"input_ids": prompt()}, "a padded batch": padded(prompt(3, 14), [0, 5, 2])}
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
        ids = prompt(1, length, seed=length).to(DEVICE)
        plain = target.generate(ids, **GREEDY).tolist()
        assert target.generate(ids, **GREEDY, custom_generate=speculation).tolist() == plain
    assert speculation.total_stats.num_accepted_tokens > 0


@compiled
@pytest.mark.needs_gpu
def test_compiled_by_graphs_in_batches(models, fresh_compiler):
    target, _ = models
    inputs = on(DEVICE, INPUTS["a padded batch"])
    plain = target.generate(**inputs, **GREEDY).tolist()
    speculation = TreeSpeculation([TokenRecycling(), SuffixLookup()], tree=4, compile={"backend": "cudagraphs"})
    for _ in range(2):
        assert target.generate(**inputs, **GREEDY, custom_generate=speculation).tolist() == plain
