"""The parts of training against plain readings of what they say."""

import itertools
import math
from pathlib import Path

import pytest
import torch
from helpers.tiny import tiny_llama
from training_texts import LENGTH, VOCAB, write

from treespec.errors import ConfigError
from treespec.training import TrainingConfig, losses, parse_settings
from treespec.training.data import Batch
from treespec.training.dflash import draw_anchors
from treespec.training.evaluate import EvaluatedText, best_tree, evaluate, greedy_start, histogram, play_rounds
from treespec.training.features import FeatureReader
from treespec.training.head_shape import usual_layers
from treespec.training.loop import learning_rate, with_noise
from treespec.training.losses import TargetTopProbs, distribution_loss
from treespec.training.draft_model import prune, spread_layers
from treespec.training.report import acceptance_table
from treespec.training.sampler import Sampler
from treespec.training.vocabulary import choose_vocabulary, draft_ids, unused_token


def plain_loss(outputs, weight, distributions, shares, tv_weight):
    """The loss from whole logits, row by row, with autograd's own gradients."""
    total = torch.zeros((), dtype=outputs.dtype)
    for row, ids, probs, share in zip(
        outputs, distributions.ids.tolist(), distributions.probs.tolist(), shares.tolist(), strict=True
    ):
        log_draft = (weight @ row).log_softmax(-1)
        known = [(i, p) for i, p in zip(ids, probs, strict=True) if i >= 0]
        divergence = sum(p * (torch.tensor(p).log() - log_draft[i]) for i, p in known)
        shared = sum(torch.minimum(log_draft[i].exp(), torch.tensor(p, dtype=row.dtype)) for i, p in known)
        distance = sum(p for _, p in known) - shared
        total = total + share * ((1 - tv_weight) * divergence + tv_weight * distance)
    return total


@pytest.mark.parametrize("tv_weight", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("is_frozen", [True, False])
def test_loss_and_gradients_are_those_of_whole_logits(monkeypatch, tv_weight, is_frozen):
    monkeypatch.setattr(losses, "CHUNK_LOGITS", 50)
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(11, 6, generator=generator).requires_grad_()
    weight = torch.randn(13, 6, generator=generator).requires_grad_(not is_frozen)
    ids = torch.stack([torch.randperm(13, generator=generator)[:4] for _ in range(11)])
    probs = torch.rand(11, 4, generator=generator) / 4
    ids[3, 1], probs[3, 1] = -1, 0.0
    distributions, shares = TargetTopProbs(ids, probs), torch.rand(11, generator=generator)
    inputs = [outputs] if is_frozen else [outputs, weight]
    loss = distribution_loss(outputs, weight, distributions, shares, tv_weight)
    expected = plain_loss(outputs, weight, distributions, shares, tv_weight)
    torch.testing.assert_close(loss, expected)
    found = torch.autograd.grad(3 * loss, inputs)
    torch.testing.assert_close(found, torch.autograd.grad(3 * expected, inputs), atol=1e-6, rtol=1e-4)


def test_the_vocabulary_is_of_the_most_frequent_tokens():
    tokens, top = torch.tensor([5, 5, 2, 2, 2, 7, 1]), torch.tensor([[7, -1], [7, 1]])
    assert choose_vocabulary(tokens, top, 9, 3).tolist() == [2, 5, 7]
    assert choose_vocabulary(tokens, top, 9, 9).tolist() == list(range(9))
    assert draft_ids(torch.tensor([2, 5, 7]), 9).tolist() == [-1, -1, 0, -1, -1, 1, -1, 2, -1]
    assert unused_token(tokens, 9) == 8


def test_every_text_once_per_epoch_and_another_order_in_the_next():
    sampler = Sampler([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], 2, seed=3)
    epochs = [[sampler.batch(6 * epoch + i) for i in range(6)] for epoch in range(2)]
    assert all(sorted(itertools.chain(*epoch)) == list(range(11)) for epoch in epochs)
    assert epochs[0] != epochs[1]
    assert Sampler([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], 2, seed=3).batch(7) == epochs[1][1]


def test_anchors_are_where_the_target_wrote():
    is_generated = torch.rand(3, 40, generator=torch.Generator().manual_seed(0)) < 0.5
    anchors = draw_anchors(is_generated, 10, torch.Generator().manual_seed(1))
    assert is_generated.gather(1, anchors).all()
    assert all(len(set(row)) == 10 for row in anchors.tolist())


def test_rounds_start_behind_the_token_that_the_target_adds():
    right = torch.tensor([[1, 1], [0, 1], [0, 0], [1, 0], [1, 1], [1, 1], [1, 1]], dtype=torch.bool)
    judged = torch.tensor([[True, True]] * 6 + [[True, False]])
    # From 0 both are right, so 3 is next; there one is, so 5 is next.
    assert play_rounds((~right).long(), judged).tolist() == [2, 1, 2]
    judged[5, 1] = False
    assert play_rounds((~right).long(), judged).tolist() == [2, 1]


def test_chains_of_every_length_play_their_own_rounds():
    ranks = torch.tensor([[0, 0], [1, 1], [1, 1]] * 14)
    judged = torch.ones_like(ranks, dtype=torch.bool)
    found = evaluate([EvaluatedText(ranks, torch.zeros(ranks.shape), judged, judged[:, 0])])
    # Chains of two meet nothing but the first of every three places, chains of one the last of them as well.
    assert found.chain == {1: 1.5, 2: 3.0}


def test_what_greedy_texts_tell_is_not_said_without_any():
    ranks, judged = torch.zeros(12, 2, dtype=torch.int64), torch.ones(12, 2, dtype=torch.bool)
    found = evaluate([EvaluatedText(ranks, torch.full(ranks.shape, 0.5), judged, ~judged[:, 0])])
    assert found.num_greedy_positions == 0
    assert found.chain == found.tree == {}
    assert found.summary() == {"overlap": 0.5, "sampled_chain_2": 1.75}
    assert acceptance_table(found)[2].endswith("|  | 0.500 |")


def test_a_greedy_end_begins_behind_the_last_other_token():
    best = torch.ones(50, dtype=torch.bool)
    best[[9, 49]] = False
    assert greedy_start(best) == 10
    best[30] = False
    assert greedy_start(best) == 50


def test_histogram_counts_ranks_by_depth():
    ranks = torch.tensor([[0, 3], [1, 2**30], [0, 0], [7, 7]])
    counted = torch.tensor([[1, 1], [1, 1], [1, 1], [1, 0]], dtype=torch.bool)
    table = histogram(ranks, counted)
    assert table[0] == pytest.approx([0.5, 0.25, 0, 0, 0, 0, 0, 0.25])
    assert table[1] == pytest.approx([1 / 3, 0, 0, 1 / 3, 0, 0, 0, 0])


def test_the_best_tree_is_that_of_brute_force():
    acceptance = [[0.5, 0.1, 0.2], [0.4, 0.3, 0.1]]
    paths = [(r,) for r in range(3)] + list(itertools.product(range(3), repeat=2))

    def value(tree):
        return 1 + sum(torch.tensor([acceptance[d][r] for d, r in enumerate(path)]).prod().item() for path in tree)

    def is_tree(tree):
        return all(path[:-1] in tree or len(path) == 1 for path in tree)

    for size in (1, 2, 4, 6):
        best = max(value(tree) for tree in map(set, itertools.combinations(paths, size - 1)) if is_tree(tree))
        assert best_tree(acceptance, size) == pytest.approx(best)


def test_features_of_a_batch_are_those_of_single_texts(target):
    texts = write(target, 3).tokens.split(LENGTH)
    cut = [texts[0], texts[1][:7], texts[2][:30]]
    together = FeatureReader(target, (0, 2), 5, torch.float32).read_all(cut)
    for text, found in zip(cut, together, strict=True):
        with torch.no_grad():
            output = target(text[None], output_hidden_states=True)
        states = torch.cat([output.hidden_states[0], output.hidden_states[2]], -1)[0]
        torch.testing.assert_close(found.states, states, atol=1e-5, rtol=1e-4)
        probs = output.logits[0].softmax(-1)
        assert (probs.gather(1, found.top_ids.long()) - found.top_probs).abs().max() < 1e-3
        assert torch.equal(found.top_ids[:, 0].long(), probs.argmax(-1))


def test_features_are_not_read_in_training_mode():
    with pytest.raises(ConfigError, match="training mode"):
        FeatureReader(tiny_llama().train(), (0,))


def test_pruned_models_keep_the_layers_they_are_told(target):
    pruned, ids = prune(target, [0, 2]), torch.randint(1, VOCAB, (1, 6), generator=torch.Generator().manual_seed(0))
    assert torch.equal(pruned.model.layers[1].mlp.up_proj.weight, target.model.layers[2].mlp.up_proj.weight)
    whole = prune(target, range(3))
    with torch.no_grad():
        torch.testing.assert_close(whole(ids).logits, target(ids).logits)
        assert not torch.allclose(pruned(ids).logits, target(ids).logits)
    with pytest.raises(ConfigError, match="layers 0 to 2"):
        prune(target, [3])
    assert spread_layers(30, 5) == [0, 7, 14, 22, 29]


def test_the_rate_warms_up_and_falls_to_zero():
    config = TrainingConfig(learning_rate=1.0, warmup_steps=3)
    assert [learning_rate(config, step, 0.0) for step in range(5)] == pytest.approx([0.25, 0.5, 0.75, 1, 1])
    assert learning_rate(config, 100, 0.5) == pytest.approx(0.5)
    assert learning_rate(config, 100, 1.0) == pytest.approx(0)


def test_noise_is_in_units_of_the_states():
    states = torch.randn(2, 50, 64, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 100]).view(2, 1, 1)
    batch = Batch(*[torch.zeros(2, 50)] * 6)._replace(states=states)
    noisy = with_noise(batch, 0.1, torch.Generator().manual_seed(1)).states - states
    assert noisy.std((1, 2)).tolist() == pytest.approx([0.1, 10], rel=0.1)
    assert with_noise(batch, 0.0, torch.Generator()) is batch


def test_settings_are_parsed_by_their_types():
    given = ["num_layers=2", "learning_rate=1e-3", "hidden_layers=2,15", "is_mixed=false", "kind=dflash", "clip=2"]
    assert TrainingConfig(**parse_settings(given)) == TrainingConfig(
        kind="dflash", num_layers=2, learning_rate=1e-3, hidden_layers=(2, 15), is_mixed=False, clip=2
    )
    assert parse_settings(["minutes=none", "hidden_layers=3"]) == {"minutes": None, "hidden_layers": (3,)}


@pytest.mark.parametrize(
    ("setting", "message"),
    [("nothing=1", "no setting 'nothing'"), ("batch_size=2.5", "must be int"), ("is_mixed=1", "must be bool")],
)
def test_settings_that_are_wrong_are_named(setting, message):
    with pytest.raises(ConfigError, match=message):
        parse_settings([setting])


@pytest.mark.parametrize(
    ("kind", "setting"),
    [("eagle3", "markov_rank=64"), ("draft_model", "hidden_layers=2,15"), ("draft_model", "num_anchors=3")],
)
def test_settings_of_another_kind_are_named(kind, setting):
    name = setting.partition("=")[0]
    with pytest.raises(ConfigError, match=f"{name} is no setting of a drafter of the kind {kind}"):
        parse_settings([setting], kind)
    with pytest.raises(ConfigError, match=f"{name} is no setting"):
        parse_settings([setting, f"kind={kind}"], "dflash")
    if name != "hidden_layers":
        assert name in parse_settings([setting], "dflash")
    assert name in parse_settings([setting])


def test_a_model_of_any_depth_has_different_layers_to_fuse():
    assert usual_layers(30) == (2, 15, 27)
    for count in range(1, 41):
        layers = usual_layers(count)
        assert list(layers) == sorted(set(layers))
        assert layers[0] >= 0
        assert layers[-1] < count


@pytest.mark.parametrize(
    "options",
    [
        {"kind": "other"},
        {"batch_size": 0},
        {"tv_weight": 1.5},
        {"minutes": -1.0},
        {"max_length": 4},
        {"betas": (0.9,)},
        {"hidden_layers": (0.5, 2)},
        {"hidden_layers": (2, 2)},
        {"num_steps": 5, "minutes": 1.0},
        {"num_depths": 1, "kind": "dflash"},
        {"num_epochs": math.inf},
        {"clip": math.nan},
        {"markov_rank": 2.5},
        {"learning_rate": "1e-3"},
        {"seed": 2**64},
        {"start": Path("runs/first")},
    ],
)
def test_configurations_that_cannot_be_are_refused(options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        TrainingConfig(**options)
