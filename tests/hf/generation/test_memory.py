"""Nothing piles up over a long generation: neither in the process nor in the cache's storage."""

import gc
import os

import psutil
import pytest
from helpers.tiny import prompt, tiny_llama

from treespec import Chain, DraftModel, TreeSpeculation
from treespec.hf import TreeScorer, make_scorer


def cache_bytes(scorer: TreeScorer) -> int:
    """What the cache's tensors hold, by their storages: a narrow view of a large storage counts in full."""
    storages = {}
    for layer in scorer.cache.layers:
        for tensor in (layer.keys, layer.values):
            storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
    return sum(storages.values())


class Scale:
    """A streamer that weighs the process whenever `every` more tokens have come."""

    def __init__(self, scorers, every):
        self.scorers, self.every, self.num_tokens, self.rest = scorers, every, 0, {}

    def put(self, value):
        before, self.num_tokens = self.num_tokens, self.num_tokens + value.shape[1]
        if before // self.every != self.num_tokens // self.every:
            gc.collect()
            caches = sum(cache_bytes(scorer) for scorer in self.scorers)
            self.rest[self.num_tokens] = psutil.Process(os.getpid()).memory_info().rss - caches

    def end(self):
        pass


def weigh(monkeypatch, num_tokens: int, every: int) -> dict[int, int]:
    """Resident memory less the caches' bytes, by the number of emitted tokens, over one sampled generation.

    With 8,192 words a distribution of one node is 32 KiB, so that keeping one per step shows: some 50 MiB over 20,000
    tokens.
    """
    sizes = {"hidden_size": 8, "num_attention_heads": 1, "num_key_value_heads": 1}
    target = tiny_llama(vocab_size=8192, num_layers=1, max_position_embeddings=num_tokens + 100, **sizes)
    scorers = []

    def remembering(model, **options):
        scorers.append(make_scorer(model, **options))
        return scorers[-1]

    monkeypatch.setattr("treespec.hf.generation.target.make_scorer", remembering)
    scale = Scale(scorers, every)
    speculation = TreeSpeculation(DraftModel(remembering(target)), tree=Chain(12), streamer=scale, seed=0)
    ids = prompt(1)
    out = target.generate(ids, max_new_tokens=num_tokens, do_sample=True, custom_generate=speculation)
    assert out.shape[1] == ids.shape[1] + num_tokens
    return scale.rest


def is_level(rest: dict[int, int], warm_up: int) -> bool:
    """Whether what was weighed after the warm-up stays within 5 % of its first weight."""
    weights = [rest for count, rest in rest.items() if count >= warm_up]
    assert len(weights) >= 10
    return max(weights) <= 1.05 * weights[0]


@pytest.mark.slow
def test_resident_memory_stays_level_over_20_000_tokens(monkeypatch):
    rest = weigh(monkeypatch, num_tokens=20_000, every=1000)
    assert is_level(rest, warm_up=2000), f"resident memory less the caches: {rest}"


@pytest.mark.slow
def test_logits_that_pile_up_are_seen(monkeypatch):
    leak, extend = [], TreeScorer.extend

    def leaking(scorer, tokens, parents):
        scores = extend(scorer, tokens, parents)
        leak.append(scores.logits)
        return scores

    monkeypatch.setattr(TreeScorer, "extend", leaking)
    rest = weigh(monkeypatch, num_tokens=3000, every=200)
    assert not is_level(rest, warm_up=1000), f"resident memory less the caches: {rest}"
