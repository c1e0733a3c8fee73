"""Shapes in signatures are checked while the tests run: a wrong one is an error of its own."""

from __future__ import annotations

import pytest
import torch
from jaxtyping import TypeCheckError

from treespec.hf.cache.slot_cache import _take

STATES = torch.ones(2, 1, 3, 1)


def test_a_wrong_shape_is_found() -> None:
    assert _take(STATES, torch.tensor([[0], [2]])).flatten().tolist() == [1.0, 1.0]
    with pytest.raises(TypeCheckError, match="states"):
        _take(STATES[0], torch.tensor([[0], [2]]))


def test_letters_mean_one_number_in_a_call() -> None:
    with pytest.raises(TypeCheckError, match="index"):
        _take(STATES, torch.tensor([[0], [2], [1]]))
