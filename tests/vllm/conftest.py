"""Fixtures of several tests of vLLM."""

from __future__ import annotations

import pytest
from helpers import eagle3_files
from helpers.engines.churn import VOCAB
from helpers.engines.models import tiny_llama
from helpers.head_files import SPECULATORS


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A tiny model and a random head for it, which reads two of its layers, the later one first.

    The model has so few tokens that the head is right now and then.
    """
    folder = tmp_path_factory.mktemp("tiny")
    tiny_llama(folder / "model", VOCAB)
    layers = {"eagle_aux_hidden_state_layer_ids": [1, 0]}
    made = eagle3_files.shape(
        vocab=VOCAB, draft_vocab=30, hidden=64, target_hidden=64, hidden_layers=(1, 0), flags=layers
    )
    eagle3_files.write(folder / "head", made, eagle3_files.random_tensors(made), SPECULATORS)
    return str(folder / "model"), str(folder / "head")
