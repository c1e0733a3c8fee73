"""Nothing piles up over a long generation: neither in the process nor in the cache's storage."""

import gc
import os

import psutil
import pytest
import torch
from tiny import prompt, tiny_llama

from treespec import Chain, DraftModel, TreeSpeculation
from treespec.hf import CausalLM, make_scorer

NUM_TOKENS, WARM_UP, ALLOWED_GROWTH = 20_000, 2_000, 0.05


def cache_bytes(scorer: CausalLM) -> int:
    """What the cache's tensors hold, by their storages: a narrow view of a large storage counts in full."""
    storages = {}
    for layer in scorer.cache.layers:
        for tensor in (layer.keys, layer.values):
            storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
    return sum(storages.values())


class Scale:
    """A streamer that weighs the process after every chunk."""

    def __init__(self, scorers):
        self.scorers, self.num_tokens, self.rest = scorers, 0, {}

    def put(self, value):
        before, self.num_tokens = self.num_tokens, self.num_tokens + value.shape[1]
        if before // 1000 != self.num_tokens // 1000:
            gc.collect()
            caches = sum(cache_bytes(scorer) for scorer in self.scorers)
            self.rest[self.num_tokens] = psutil.Process(os.getpid()).memory_info().rss - caches

    def end(self):
        pass


@pytest.mark.slow
def test_resident_memory_stays_level_over_20_000_tokens(monkeypatch):
    target = tiny_llama(num_layers=1)
    target.config.max_position_embeddings = NUM_TOKENS + 100
    scorers = []

    def remembering(model, **options):
        scorers.append(make_scorer(model, **options))
        return scorers[-1]

    monkeypatch.setattr("treespec.hf.speculation.make_scorer", remembering)
    drafter = DraftModel(remembering(target))
    scale = Scale(scorers)
    speculation = TreeSpeculation(drafter, tree=Chain(12), streamer=scale, seed=0)
    ids = prompt(1)
    out = target.generate(ids, max_new_tokens=NUM_TOKENS, do_sample=True, custom_generate=speculation)
    assert out.shape[1] == ids.shape[1] + NUM_TOKENS
    weights = [rest for count, rest in scale.rest.items() if count >= WARM_UP]
    assert len(weights) > 15
    assert max(weights) <= (1 + ALLOWED_GROWTH) * weights[0], f"resident memory less the caches: {scale.rest}"


def test_narrow_views_do_not_pin_large_storages():
    target = tiny_llama(num_layers=1)
    scorer = make_scorer(target)
    scorer.prefill(prompt(1, 16), torch.ones(1, 16, dtype=torch.bool))
    for _ in range(50):
        scorer.extend(torch.arange(1, 33).unsqueeze(0), torch.arange(-1, 31).unsqueeze(0))
        scorer.commit([[0]])
    held = scorer.cache.layers[0].keys
    assert held.shape[-2] == 66
    assert held.untyped_storage().nbytes() <= 2 * held.nbytes
