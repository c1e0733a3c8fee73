"""Shapes in signatures are checked while the tests run: a wrong one is an error of its own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.toys import as_batch, random_drafted
from jaxtyping import TypeCheckError

from treespec.hf.cache.slot_cache import _take
from treespec.verification.dense.scans import scan_rejection


def test_a_wrong_shape_is_found() -> None:
    trees, target_probs = as_batch([random_drafted(np.random.default_rng(0), 3)])
    scan_rejection(trees, target_probs)
    with pytest.raises(TypeCheckError, match="target_probs"):
        scan_rejection(trees, target_probs[0])


def test_letters_mean_one_number_in_a_call() -> None:
    assert _take(torch.ones(2, 1, 3, 1), torch.tensor([[0], [2]])).flatten().tolist() == [1.0, 1.0]
    with pytest.raises(TypeCheckError, match="index"):
        _take(torch.ones(2, 1, 3, 1), torch.tensor([[0], [2], [1]]))
