"""Passes over one node are the model's own steps: their states go on at once, and back where they are not committed.

That steps score as plain passes do: hf/models/test_make_scorer.py.
"""

from contextlib import contextmanager

import pytest
import torch
from helpers.rounds import prefilled, recurrent_states
from helpers.zoo import build, prompts

from treespec import TokenRecycling, TreeSpeculation
from treespec.errors import TreespecError, TreespecWarning
from treespec.hf.models.make_scorer import make_scorer
from treespec.hf.recurrent import scorer as scorer_file
from treespec.hf.recurrent.layers import StateLayer
from treespec.hf.recurrent.linear import path_sums
from treespec.hf.recurrent.nodes import TreeNodes
from treespec.hf.recurrent.scorer import StateScorer
from treespec.protocols import Capability

TOLERANCE = 1e-4
KINDS = ("qwen3_next", "falcon_h1", "mamba")
"""States next to keys and values, in one layer with them, and alone."""
ROOT = torch.tensor([[-1], [-1]])


def started(model) -> StateScorer:
    """Behind a prompt and its last token: what follows may be a step."""
    scorer = prefilled(StateScorer(model), prompts(2, 20))
    scorer.extend(prompts(2, 1, seed=3), ROOT)
    scorer.commit([(0,), (0,)])
    return scorer


def logits_of(model, rows):
    with torch.no_grad():
        return torch.stack([model(input_ids=torch.tensor([row]), use_cache=False).logits[0, -1] for row in rows])


def texts(*parts):
    """The rows of a prompt and what follows, each part [2, n]."""
    return torch.cat([prompts(2, 20), prompts(2, 1, seed=3), *parts], 1).tolist()


def states_of(scorer):
    return [state.clone() for state in recurrent_states(scorer.cache)]


@pytest.mark.parametrize("name", KINDS)
def test_an_error_within_a_step_leaves_states_as_they_were(name):
    model = build(name)
    scorer = started(model)
    before = states_of(scorer)

    def fail(*_):
        raise RuntimeError("out of order")

    handle = model.get_output_embeddings().register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="out of order"):
        scorer.extend(prompts(2, 1, seed=4), ROOT)
    handle.remove()
    assert all(torch.equal(*pair) for pair in zip(states_of(scorer), before, strict=True))
    scorer.commit([(), ()])
    found = scorer.extend(prompts(2, 1, seed=5), ROOT).logits[:, 0]
    assert (found - logits_of(model, texts(prompts(2, 1, seed=5)))).abs().max() <= TOLERANCE


@pytest.mark.parametrize(
    ("name", "start", "num_errors"),
    [*(("falcon_h1", *case) for case in ((0, 1), (-1, 1), (-1, 2))), ("mamba", -1, 1), ("recurrent_gemma", 0, 1)],
)
def test_an_error_behind_a_step_loses_nothing_silently(name, start, num_errors):
    model = build(name)
    scorer, first, errors = started(model), prompts(2, 1, seed=4), iter(range(num_errors))
    scorer.extend(first, ROOT)

    def fail(*_):
        if next(errors, None) is not None:
            raise RuntimeError("out of order")

    handle = model.get_output_embeddings().register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="out of order"):
        scorer.extend(prompts(2, 2, seed=5), torch.tensor([[0, start]] * 2))
    handle.remove()
    if num_errors == 2:  # The step could not be scored again.
        with pytest.raises(TreespecError, match="outside the 0 scored ones"):
            scorer.commit([(0,), (0,)])
        return
    scorer.commit([(0,), (0,)])
    found = scorer.extend(prompts(2, 1, seed=6), ROOT).logits[:, 0]
    assert (found - logits_of(model, texts(first, prompts(2, 1, seed=6)))).abs().max() <= TOLERANCE


def test_hidden_states_of_nodes_next_to_a_step():
    """Both are scored again; those of the new nodes are returned."""
    model = build("qwen3_next")
    scorer = prefilled(StateScorer(model, hidden_layers=(-1,)), prompts(2, 20))
    scorer.extend(prompts(2, 1, seed=3), ROOT)
    scorer.commit([(0,), (0,)])
    scorer.extend(prompts(2, 1, seed=4), ROOT)
    scores = scorer.extend(prompts(2, 2, seed=5), torch.tensor([[0, -1]] * 2))
    with torch.no_grad():
        torch.testing.assert_close(model.lm_head(scores.hidden_states[-1]), scores.logits)


def test_no_memory_for_the_states_of_before_is_said(monkeypatch):
    model = build("falcon_h1")
    speculation, kept = TreeSpeculation(TokenRecycling(), tree=1), StateLayer.keep
    options = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    plain = model.generate(prompts(1, 9), **options, custom_generate=speculation)  # Checks of the first use are over.
    calls = iter(range(1, 100))

    def keep(layer):
        if next(calls) == 2:
            raise torch.OutOfMemoryError("no memory")
        kept(layer)

    monkeypatch.setattr(StateLayer, "keep", keep)
    with pytest.raises(torch.OutOfMemoryError, match="no memory"):
        model.generate(prompts(1, 9), **options, custom_generate=speculation)
    assert model.generate(prompts(1, 9), **options, custom_generate=speculation).equal(plain)


@pytest.mark.parametrize("name", KINDS)
def test_steps_that_leave_wrong_states_are_found_at_the_first_use(name, monkeypatch):
    """As a package for fast kernels might."""
    stepping = StateScorer._stepping

    @contextmanager
    def leaving_wrong_states(scorer, tokens):
        with stepping(scorer, tokens):
            yield
        for state in recurrent_states(scorer.cache):
            state.mul_(1.5)

    monkeypatch.setattr(StateScorer, "_stepping", leaving_wrong_states)
    with pytest.warns(TreespecWarning, match="tree logits differ from path logits"):
        assert make_scorer(build(name)).capability != Capability.TREE


def test_autocast_rounds_no_sums_of_log_decays():
    nodes = TreeNodes(torch.arange(-1, 47)[None], 48, torch.device("cpu"))
    decays = torch.rand(1, 2, 48, 1, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(path_sums(nodes, decays), decays.double().cumsum(2))


def test_draft_models_go_on_by_steps(monkeypatch):
    """Trees of several passes grow from them, and no node is scored twice."""
    model, passes = build("lfm2"), []
    started_passes = scorer_file.TreePass
    monkeypatch.setattr(scorer_file, "TreePass", lambda *args: passes.append(args) or started_passes(*args))
    scorer = started(model)
    passes.clear()
    for _ in range(2):
        scorer.extend(prompts(2, 1, seed=4), ROOT)
        scorer.extend(prompts(2, 2, seed=5), torch.tensor([[0, 0]] * 2))
        scorer.extend(prompts(2, 3, seed=6), torch.tensor([[1, 1, 2]] * 2))
        scorer.commit([(0, 1), (0,)])
    assert [(nodes.num_old, nodes.num_new) for (nodes,) in passes] == [(0, 2), (2, 3)] * 2
