"""Texts that a tiny target writes, for training on them."""

import torch

from treespec.training.text.texts import Texts

VOCAB, LENGTH = 48, 48


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
