"""Continuations are enumerated with their exact probabilities, to the end of text, and down to a least one."""

from types import SimpleNamespace

import pytest
import torch

from treespec.testing import enumerate_continuations, uncached

PROBS = torch.tensor([0.5, 0.3, 0.2, 0.0])


def fixed(contexts):
    return PROBS.expand(len(contexts), -1)


def test_a_product_distribution() -> None:
    joint, probs = enumerate_continuations(fixed, 3)
    assert len(joint) == 27
    assert sum(joint.values()) == pytest.approx(1, abs=1e-12)
    assert joint[0, 1, 2] == pytest.approx(0.03)
    assert len(probs) == 1 + 3 + 9
    assert set(probs[2, 0]) == {0, 1, 2}


def test_texts_end_and_rare_ones_are_left_out() -> None:
    joint, _ = enumerate_continuations(fixed, 3, end=0)
    assert len(joint) == 1 + 2 + 4 + 8
    assert sum(joint.values()) == pytest.approx(1)
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
