"""Chains of models that keep states: snapshot, replay, ragged rows, refusals."""

import pytest
import torch
from helpers.rounds import Game, prefilled
from helpers.zoo import build, prompts

from treespec.errors import TreespecError, UnsupportedModelError
from treespec.hf.models.recurrent_scorer import RecurrentScorer
from treespec.protocols import Capability

TOLERANCE = 1e-4
CHAIN = torch.tensor([[-1, 0, 1, 2]])


@pytest.fixture(scope="module")
def hybrid():
    return build("falcon_h1")


def filled(model, ids, **options):
    return prefilled(RecurrentScorer(model, **options), ids)


@torch.no_grad()
def plain(model, *parts):
    return model(input_ids=torch.cat(parts, dim=1), use_cache=False).logits[:, -parts[-1].shape[1] :]


def close(found, expected):
    return (found - expected).abs().max() <= TOLERANCE


def test_full_acceptance_replays_nothing_and_a_chain_may_be_dropped_whole(hybrid):
    ids, more = prompts(1, 26), prompts(1, 2, seed=2)
    scorer, calls = filled(hybrid, ids), []
    scorer.extend(prompts(1, 4, seed=1), CHAIN)
    scorer.commit([()])
    assert close(scorer.extend(more, CHAIN[:, :2]).logits, plain(hybrid, ids, more))
    scorer.commit([()])
    scorer.extend(prompts(1, 4, seed=1), CHAIN)
    handle = hybrid.register_forward_pre_hook(lambda *_: calls.append(1))
    scorer.commit([(0, 1, 2, 3)])
    assert not calls
    scorer.extend(prompts(1, 4, seed=1), CHAIN)
    scorer.commit([(0, 1)])
    handle.remove()
    assert len(calls) == 2


def test_ragged_rows_score_as_plain_passes(hybrid):
    """One of them, of a single token, has nothing to prefill; another one leaves."""
    game = Game(hybrid, RecurrentScorer(hybrid), [26, 19, 0])
    assert game.play(3) <= TOLERANCE
    game.select_rows([2, 1])
    assert game.play(3) <= TOLERANCE


def test_hidden_states_and_rows_of_padding(hybrid):
    ids, mask = prompts(3, 26), torch.ones(3, 26, dtype=torch.bool)
    mask[1, :7] = False
    scorer = RecurrentScorer(hybrid, hidden_layers=(0, -1))
    states = scorer.prefill(ids, mask).hidden_states
    with torch.no_grad():
        expected = hybrid(input_ids=ids[1:2, 7:], output_hidden_states=True, use_cache=False).hidden_states
    assert all(close(states[layer][1, 7:], expected[layer][0]) for layer in (0, -1))
    assert scorer.cache is None
    scores = scorer.extend(prompts(3, 3, seed=1), torch.tensor([[-1, 0, 1], [-1, 0, -2], [-2, -2, -2]]))
    assert not scores.logits[1, 2].any()
    assert not scores.logits[2].any()
    assert [list(states.shape) for states in scores.hidden_states.values()] == [[3, 3, 32]] * 2


def test_wrong_use_is_refused_and_nothing_changes(hybrid):
    ids, tokens = prompts(1, 26), prompts(1, 4, seed=1)
    scorer = filled(hybrid, ids)
    for parents in ([-1, -1], [-1, -2, 0], [0, 1], [-1, 0, 0]):
        with pytest.raises(UnsupportedModelError, match="can only score chains"):
            scorer.extend(prompts(1, len(parents)), torch.tensor([parents]))
    with pytest.raises(TreespecError, match="expected int64"):
        scorer.extend(prompts(2, 2), torch.tensor([[-1, 0], [-1, 0]]))
    with pytest.raises(TreespecError, match="padding only"):
        scorer.extend(prompts(1, 1), torch.tensor([[-2]]))
    assert close(scorer.extend(tokens, CHAIN).logits, plain(hybrid, ids, tokens))
    for paths in ([(1,)], [(0, 2)], [(0, 1, 2, 3, 4)], [(0,), (0,)]):
        with pytest.raises(TreespecError, match="expected"):
            scorer.commit(paths)
    with pytest.raises(UnsupportedModelError, match="scores no trees"):
        RecurrentScorer(hybrid, capability=Capability.TREE)
    single = filled(hybrid, prompts(1, 26), capability=Capability.PLAIN)
    with pytest.raises(UnsupportedModelError, match="one token at a time"):
        single.extend(prompts(1, 2), torch.tensor([[-1, 0]]))
