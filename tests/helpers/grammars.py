"""Grammars over 64 tokens for tests, and the distribution of a target under them."""

import torch
from transformers import LogitsProcessorList

from treespec.testing import enumerate_continuations, uncached

OPTIONS = {"max_new_tokens": 16, "do_sample": False}


def constrained(model, inputs, processor, **options):
    """`generate` under a processor, greedy unless `options` say otherwise."""
    return model.generate(**inputs, **OPTIONS | {"logits_processor": LogitsProcessorList([processor])} | options)


def check_constrained(model, inputs, processor, speculation, times=1, **options):
    """Greedy output is that of plain `generate`; returns it."""
    plain = constrained(model, inputs, processor, **options)
    for _ in range(times):
        assert torch.equal(constrained(model, inputs, processor, custom_generate=speculation, **options), plain)
    return plain


class Rising:
    """Texts whose tokens rise by at most 9, and start again below 8 after 55."""

    def __init__(self, last=0):
        self.last = last

    def fork(self):
        return type(self)(self.last)

    def advance(self, token):
        assert self.mask()[token]
        self.last = token

    def mask(self):
        tokens = torch.arange(60)  # Shorter than the head.
        return tokens < 8 if self.last > 55 else (tokens > self.last) & (tokens <= self.last + 9)


class SometimesRising(Rising):
    """Rising texts in which 11 is followed by 13 and 13 by 17."""

    def mask(self):
        following = {11: 13, 13: 17}.get(self.last)
        return super().mask() if following is None else torch.arange(60) == following


class Spelled:
    """One text of 30 tokens, then the end."""

    def __init__(self, position=0):
        self.position = position

    def fork(self):
        return type(self)(self.position)

    def advance(self, token):
        self.position += 1

    def mask(self):
        mask = torch.zeros(64, dtype=torch.bool)
        mask[5 + 7 * self.position % 50 if self.position < 30 else 1] = True
        return mask


class Sometimes(Spelled):
    """Four tokens that are given, then two that are free, and so on."""

    def mask(self):
        return super().mask() if self.position % 6 < 4 else torch.ones(64, dtype=torch.bool)


def is_rising(tokens):
    tokens = list(tokens)
    return all(bool(Rising(last).mask()[token]) for last, token in zip([0, *tokens[:-1]], tokens, strict=True))


def drafted_texts(speculation, num_rows):
    """Every row's text with every drafted path behind it, from the steps of the last call."""
    texts, found = {row: [] for row in range(num_rows)}, []
    for step in speculation.steps:
        for row, tree, emitted in zip(step.rows, step.trees, step.emitted, strict=True):
            paths = [[tree.token(n) for n in tree.path_to(node)[1:]] for node in range(1, tree.num_nodes)]
            found += [texts[row] + path for path in paths]
            texts[row] += emitted
    return found


def constrained_distribution(model, ids, state, depth):
    """Every allowed continuation and its probability under top-k 3 and temperature 2, from plain passes."""

    def process(texts, scores):
        for text, row in zip(texts[:, ids.shape[1] :].tolist(), scores, strict=True):
            fork = state.fork()
            for token in text:
                fork.advance(token)
            row[~torch.nn.functional.pad(fork.mask(), (0, 64))[:64]] = -torch.inf
        return scores.masked_fill(scores < scores.topk(3).values[:, -1:], -torch.inf) / 2

    return enumerate_continuations(uncached(model, ids[0], process), depth).joint
