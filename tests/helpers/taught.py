"""A toy target whose hidden states are its tokens' embeddings, for heads that are trained to draft its next tokens."""

from dataclasses import replace

import torch
from helpers.toy_models import FixedLength, TableLM, ToyScorer

from treespec.engine.loop import Run, speculate
from treespec.protocols import Scores

VOCAB, SIZE, LAYER = 10, 16, 1


class SecondOrder(TableLM):
    """The next token depends on the last two, so that the last one alone says little."""

    def logits(self, text):
        return self._table[text[-2] if len(text) > 1 else 0, text[-1], 0]

    def best_next(self):
        """int64 [V, V]: the most probable token after every pair."""
        rows = [torch.stack([self.logits([a, b]) for b in range(VOCAB)]) for a in range(VOCAB)]
        return torch.stack(rows).argmax(-1)


class Alternating(TableLM):
    """The next token is almost surely the token before the last one, changed: every other token makes a text."""

    changed = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(1))

    def logits(self, text):
        return 6.0 * torch.nn.functional.one_hot(self.changed[text[-2] if len(text) > 1 else 0], VOCAB)


class FeatureScorer(ToyScorer):
    """Its hidden state at a token is the token's embedding."""

    hidden_layers = (LAYER,)

    def __init__(self, model, embedding):
        super().__init__(model)
        self._embedding = embedding

    def prefill(self, ids, mask):
        super().prefill(ids, mask)
        return {LAYER: self._embedding[ids]}

    def extend(self, tokens, parents):
        return Scores(super().extend(tokens, parents).logits, {LAYER: self._embedding[tokens]})


class Misplaced:
    """Takes the states of the tokens after those that were emitted; a mixin."""

    def update(self, step):
        late = {layer: states.roll(-1, 1) for layer, states in step.scores.hidden_states.items()}
        super().update(replace(step, scores=Scores(step.scores.logits, late)))


def fresh(kind, config, embedding):
    """A head of this kind, the same at every call; torch's global generator is not touched."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return kind(config, embedding, torch.arange(VOCAB))


def fit(head, loss, num_steps=100):
    """Train a head: `loss()` is that of the next random texts."""
    optimizer = torch.optim.AdamW(head.parameters(), lr=1e-2)
    for _ in range(num_steps):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
    return head.eval()


def mean_acceptance(trained, kind, policy):
    """Greedy texts of twelve random prompts of six tokens; trained: the toy target, its embedding and a head."""
    model, embedding, head = trained
    ids = torch.randint(0, VOCAB, (12, 6), generator=torch.Generator().manual_seed(7))
    parts = FeatureScorer(model, embedding), kind(head, (LAYER,))
    run = Run(*parts, ids, torch.ones_like(ids, dtype=torch.bool), FixedLength(6 + 24), policy, is_sampling=False)
    return speculate(run).stats.mean_acceptance_length
