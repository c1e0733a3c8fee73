"""Nothing piles up over a generation but the text and its cache."""

import gc
import tracemalloc

import pytest
import torch
from helpers.tiny import prompt, tiny_llama

from treespec import Chain, TreeSpeculation
from treespec.hf import TreeScorer

EVERY = 40
MOST_BYTES = 2**10
"""More bytes per token: less than the cache, the ids and the counts of a step take, and a distribution takes 32 KiB."""


def num_bytes() -> int:
    """Bytes of tensors, by their storages, and those that Python and numpy have allocated since `tracemalloc.start`.

    Tensors of before `gc.freeze` are left out: those of other tests may have no storage.
    """
    gc.collect()
    tensors = [each for each in gc.get_objects() if issubclass(type(each), torch.Tensor)]
    storages = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in tensors}
    return sum(storages.values()) + tracemalloc.get_traced_memory()[0]


class Scale:
    """A streamer that notes what is held whenever `EVERY` more tokens have come."""

    def __init__(self):
        self.num_tokens, self.found = 0, {}

    def put(self, value):
        before, self.num_tokens = self.num_tokens, self.num_tokens + value.shape[1]
        if before // EVERY != self.num_tokens // EVERY:
            self.found[self.num_tokens] = num_bytes()

    def end(self):
        pass


def growth(num_tokens: int = 240, warm_up: int = 80) -> float:
    """Bytes per token of one sampled generation."""
    sizes = {"hidden_size": 8, "num_attention_heads": 1, "num_key_value_heads": 1}
    target, scale = tiny_llama(vocab_size=8192, num_layers=1, **sizes), Scale()
    speculation = TreeSpeculation(target, tree=Chain(12), streamer=scale, seed=0)
    gc.freeze()
    tracemalloc.start()
    try:
        target.generate(prompt(1), max_new_tokens=num_tokens, do_sample=True, custom_generate=speculation)
    finally:
        tracemalloc.stop()
        gc.unfreeze()
    first, *_, last = (count for count in scale.found if count >= warm_up)
    return (scale.found[last] - scale.found[first]) / (last - first)


def test_memory_stays_level():
    assert growth() < MOST_BYTES


@pytest.mark.parametrize("kind", [torch.Tensor, "array"])
def test_logits_that_pile_up_are_seen(monkeypatch, kind):
    leak, extend = [], TreeScorer.extend

    def leaking(scorer, tokens, parents):
        scores = extend(scorer, tokens, parents)
        leak.append(scores.logits if kind is torch.Tensor else scores.logits.numpy().copy())
        return scores

    monkeypatch.setattr(TreeScorer, "extend", leaking)
    assert growth() > 10 * MOST_BYTES
