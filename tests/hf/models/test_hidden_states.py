"""Drafters that read the target's hidden states get those of the prompt and of every node."""

import pytest
import torch

from treespec import TokenRecycling, TreeSpeculation
from treespec.engine.loop import Run, speculate
from treespec.errors import ConfigError
from treespec.hf import make_scorer
from treespec.hf.generation.stopping import TreeStopping


class Reader(TokenRecycling):
    """Keeps the hidden states along the committed text."""

    hidden_layers = (1, -1)

    def start(self, session):
        super().start(session)
        self.states = {layer: [session.prompt_states[layer][0]] for layer in self.hidden_layers}

    def update(self, step):
        super().update(step)
        path = list(step.verdicts[0].path[: len(step.emitted[0])])
        for layer in self.hidden_layers:
            self.states[layer].append(step.scores.hidden_states[layer][0, path])


def test_states_of_prompt_and_nodes_are_those_of_the_text(target):
    reader = Reader()
    prompt = torch.tensor([[3, 5, 7, 9, 5, 7]])
    out = target.generate(
        prompt, max_new_tokens=12, do_sample=False, eos_token_id=None, custom_generate=TreeSpeculation(reader, tree=8)
    )
    with torch.no_grad():
        expected = target(input_ids=out[:, :-1], output_hidden_states=True, use_cache=False).hidden_states
    for layer in reader.hidden_layers:
        torch.testing.assert_close(torch.cat(reader.states[layer]), expected[layer][0], atol=1e-4, rtol=0)


def test_a_scorer_without_the_states_is_refused(target):
    prompt = torch.tensor([[3, 5, 7]])
    mask, stopping = torch.ones_like(prompt, dtype=torch.bool), TreeStopping([], 1, None)
    with pytest.raises(ConfigError, match=r"make_scorer\(model, hidden_layers=\(1, -1\)\)"):
        speculate(Run(make_scorer(target), Reader(), prompt, mask, stopping))
