"""Continuations are enumerated with their exact probabilities; the G-test finds shifted and impossible outcomes."""

from types import SimpleNamespace

import pytest
import torch

from treespec.errors import ConfigError
from treespec.testing import enumerate_continuations, g_test, uncached

PROBS = torch.tensor([0.5, 0.3, 0.2, 0.0])


def fixed(contexts):
    return PROBS.expand(len(contexts), -1)


def test_texts_end_and_rare_ones_are_left_out() -> None:
    joint, probs = enumerate_continuations(fixed, 3, end=0)
    assert set(probs) == {(), (1,), (2,), (1, 1), (1, 2), (2, 1), (2, 2)}
    assert probs[2, 1] == pytest.approx({0: 0.5, 1: 0.3, 2: 0.2})
    assert len(joint) == 1 + 2 + 4 + 8
    assert sum(joint.values()) == pytest.approx(1, abs=1e-12)
    assert joint[2, 1, 2] == pytest.approx(0.012)
    assert all(0 not in text[:-1] for text in joint)
    common, _ = enumerate_continuations(fixed, 3, end=0, least=0.04)
    assert common == {text: prob for text, prob in joint.items() if prob >= 0.04}
    assert (2, 2, 0) not in common


def test_passes_get_the_prompt_and_processors_the_whole_text() -> None:
    seen = []

    def model(ids, use_cache):
        assert not use_cache
        return SimpleNamespace(logits=torch.nn.functional.one_hot(ids, 4) * 2.0)

    def process(ids, scores):
        seen.extend(map(tuple, ids.tolist()))
        return scores.masked_fill(torch.arange(4) == 3, -torch.inf)

    joint, probs = enumerate_continuations(uncached(model, torch.tensor([3, 1]), process), 2)
    assert seen == [(3, 1), (3, 1, 0), (3, 1, 1), (3, 1, 2)]
    e = torch.e**2
    assert probs[()] == pytest.approx({0: 1 / (2 + e), 1: e / (2 + e), 2: 1 / (2 + e)}, rel=1e-6)
    assert joint[2, 2] == pytest.approx(e / (2 + e) ** 2, rel=1e-6)


def test_an_impossible_outcome_fails_at_once_and_small_cells_are_pooled() -> None:
    assert g_test({"a": 500, "b": 499, "c": 1}, {"a": 0.5, "b": 0.5, "c": 0.0}) == 0
    assert g_test({"a": 500, "b": 499, "d": 1}, {"a": 0.5, "b": 0.5}) == 0
    assert g_test({"a": 500, "b": 500, "d": 0}, {"a": 0.5, "b": 0.5}) == 1
    probs = {0: 0.5, 1: 0.49} | dict.fromkeys(range(2, 102), 0.0001)
    assert g_test({0: 500, 1: 490} | dict.fromkeys(range(92, 102), 1), probs) == pytest.approx(1, abs=1e-6)
    with pytest.raises(ConfigError, match="sum to one"):
        g_test({0: 5}, {0: 0.5})


def test_a_shift_is_found_and_sums_that_were_fixed_beforehand_cost_a_degree_of_freedom_each() -> None:
    """G = 2 * (600 ln 1.2 + 400 ln 0.8) = 40.3 with one degree of freedom."""
    assert g_test({0: 600, 1: 400}, {0: 0.5, 1: 0.5}) == pytest.approx(2.2e-10, rel=0.1)
    counts, probs = {0: 60, 1: 40, 2: 60, 3: 40}, dict.fromkeys(range(4), 0.25)
    assert g_test(counts, probs, num_groups=2) < g_test(counts, probs)
    assert g_test({0: 9, 1: 1}, {0: 0.5, 1: 0.5}, num_groups=2) == 1
