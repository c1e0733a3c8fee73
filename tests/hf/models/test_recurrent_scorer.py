"""Chains of models that keep states: snapshot, replay, ragged rows, refusals."""

import pytest
import torch
from helpers.rounds import prefilled
from helpers.zoo import build, prompts

from treespec.errors import TreespecError, UnsupportedModelError
from treespec.hf.cache.caches import restore, snapshot
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


def test_a_chain_is_dropped_whole(hybrid):
    """Other parts of chains are kept in the rounds that `make_scorer`'s tests play with every architecture."""
    ids, tokens, more = prompts(1, 26), prompts(1, 4, seed=1), prompts(1, 2, seed=2)
    scorer = filled(hybrid, ids)
    scorer.extend(tokens, CHAIN)
    scorer.commit([()])
    assert close(scorer.extend(more, CHAIN[:, :2]).logits, plain(hybrid, ids, more))


def test_full_acceptance_replays_nothing(hybrid):
    scorer = filled(hybrid, prompts(1, 26))
    scorer.extend(prompts(1, 4, seed=1), CHAIN)
    calls = []
    handle = hybrid.register_forward_pre_hook(lambda *_: calls.append(1))
    scorer.commit([(0, 1, 2, 3)])
    assert not calls
    scorer.extend(prompts(1, 4, seed=1), CHAIN)
    scorer.commit([(0, 1)])
    handle.remove()
    assert len(calls) == 2


def test_states_do_not_survive_without_restore(hybrid):
    """The planted bug: a chain that is dropped without going back leaves its trace in the states."""
    ids, tokens, more = prompts(1, 26), prompts(1, 4, seed=1), prompts(1, 1, seed=2)
    scorer = filled(hybrid, ids)
    scorer.extend(tokens, CHAIN)
    scorer._rows[0].state, scorer._rows[0].pending, scorer._rows[0].length = None, [], 26
    assert not close(scorer.extend(more, CHAIN[:, :1]).logits, plain(hybrid, ids, more))


def test_snapshot_is_not_touched_by_later_passes(hybrid):
    scorer = filled(hybrid, prompts(1, 26))
    cache = scorer.cache
    assert cache is not None
    state = snapshot(cache)
    before = [layer["recurrent_states"][0].clone() for layer in state]
    scorer.extend(prompts(1, 4, seed=1), CHAIN)
    assert all(torch.equal(layer["recurrent_states"][0], kept) for layer, kept in zip(state, before, strict=True))
    assert not torch.equal(cache.layers[0].recurrent_states[0], before[0])
    restore(cache, state)
    assert torch.equal(cache.layers[0].recurrent_states[0], before[0])
    assert cache.get_seq_length() == 26


def test_ragged_rows_and_selection(hybrid):
    ids, mask = prompts(3, 26), torch.ones(3, 26, dtype=torch.bool)
    mask[1, :7] = False
    scorer = RecurrentScorer(hybrid, hidden_layers=(0, -1))
    states = scorer.prefill(ids, mask)
    with torch.no_grad():
        expected = hybrid(input_ids=ids[1:2, 7:], output_hidden_states=True, use_cache=False).hidden_states
    assert all(close(states[layer][1, 7:], expected[layer][0]) for layer in (0, -1))
    assert scorer.cache is None
    tokens = prompts(3, 3, seed=1)
    scores = scorer.extend(tokens, torch.tensor([[-1, 0, 1], [-1, 0, -2], [-2, -2, -2]]))
    assert close(scores.logits[1, :2], plain(hybrid, ids[1:2, 7:], tokens[1:2, :2])[0])
    assert (scores.logits[1, 2] == 0).all()
    assert (scores.logits[2] == 0).all()
    assert [list(states.shape) for states in scores.hidden_states.values()] == [[3, 3, 32]] * 2
    scorer.commit([(0,), (0, 1), ()])
    scorer.select_rows([2, 1])
    more = prompts(2, 1, seed=2)
    logits = scorer.extend(more, torch.tensor([[-1], [-1]])).logits
    assert close(logits[0], plain(hybrid, ids[2:3], more[:1])[0])
    assert close(logits[1], plain(hybrid, ids[1:2, 7:], tokens[1:2, :2], more[1:])[0])


def test_prompt_of_one_token(hybrid):
    """The engine keeps the last prompt token back, so nothing is left to prefill."""
    scorer = filled(hybrid, torch.empty(1, 0, dtype=torch.int64))
    tokens = prompts(1, 4)
    assert close(scorer.extend(tokens, CHAIN).logits, plain(hybrid, tokens))


@pytest.mark.parametrize("parents", [[-1, -1], [-1, -2, 0], [0, 1], [-1, 0, 0]])
def test_trees_are_refused_and_nothing_changes(hybrid, parents):
    ids, tokens = prompts(1, 26), prompts(1, 4, seed=1)
    scorer = filled(hybrid, ids)
    with pytest.raises(UnsupportedModelError, match="can only score chains"):
        scorer.extend(prompts(1, len(parents)), torch.tensor([parents]))
    assert close(scorer.extend(tokens, CHAIN).logits, plain(hybrid, ids, tokens))


@pytest.mark.parametrize("paths", [[(1,)], [(0, 2)], [(0, 1, 2, 3, 4)], [(0,), (0,)]])
def test_wrong_paths_are_refused(hybrid, paths):
    scorer = filled(hybrid, prompts(1, 26))
    scorer.extend(prompts(1, 4, seed=1), CHAIN)
    with pytest.raises(TreespecError, match="expected"):
        scorer.commit(paths)


def test_wrong_use_is_refused(hybrid):
    with pytest.raises(UnsupportedModelError, match="scores no trees"):
        RecurrentScorer(hybrid, capability=Capability.TREE)
    scorer = filled(hybrid, prompts(1, 26))
    with pytest.raises(TreespecError, match="expected int64"):
        scorer.extend(prompts(2, 2), torch.tensor([[-1, 0], [-1, 0]]))
    with pytest.raises(TreespecError, match="padding only"):
        scorer.extend(prompts(1, 1), torch.tensor([[-2]]))
    single = filled(hybrid, prompts(1, 26), capability=Capability.PLAIN)
    with pytest.raises(UnsupportedModelError, match="one token at a time"):
        single.extend(prompts(1, 2), torch.tensor([[-1, 0]]))
