"""Texts that a tiny target writes, and settings of short runs on them."""

import torch

from treespec.training import TrainingConfig
from treespec.training.text.texts import Texts

VOCAB, LENGTH = 48, 48

CONFIG = TrainingConfig(
    num_steps=16,
    draft_vocab_size=40,
    num_depths=3,
    num_anchors=16,
    markov_rank=8,
    num_held_out=8,
    warmup_steps=3,
    eval_every=6,
    save_every=7,
    learning_rate=5e-3,
    is_mixed=False,
)

SMALL = {"num_steps": 2, "num_depths": 2, "num_anchors": 6, "draft_vocab_size": 60, "num_held_out": 2, "batch_size": 4}


def write(model, num_texts, seed=0, do_sample=False):
    """Texts by transformers' own generate, with the candidates of a plain pass; three given tokens each."""
    prompts = torch.randint(1, VOCAB, (num_texts, 3), generator=torch.Generator().manual_seed(seed))
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        options = {"temperature": 0.7, "top_k": 0} if do_sample else {}
        tokens = model.generate(prompts, max_new_tokens=LENGTH - 3, do_sample=do_sample, **options)
        top = model(tokens).logits.topk(4).indices
    top[:, :2] = top[:, -1:] = -1
    return Texts(tokens.flatten(), torch.full((num_texts,), LENGTH), top.flatten(0, 1))


def random_texts(vocab_size):
    """Twelve random texts of twenty tokens, as if a model had generated them greedily."""
    tokens = torch.randint(3, vocab_size, (240,), generator=torch.Generator().manual_seed(0))
    top = tokens.roll(-1).unsqueeze(1).clone()
    top[19::20] = -1
    return Texts(tokens, torch.full((12,), 20), top)
