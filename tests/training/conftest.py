"""The tiny target that drafters are trained for, its texts, and a run of every kind."""

from dataclasses import replace

import pytest
import torch
from helpers.tiny import tiny_llama
from helpers.training import CONFIG, VOCAB, write

from treespec.training import train
from treespec.training.text.texts import Texts


@pytest.fixture(scope="session")
def target():
    return tiny_llama(vocab_size=VOCAB, num_layers=3, max_position_embeddings=128)


@pytest.fixture(scope="session")
def texts(target):
    """Forty sampled texts and forty greedy ones."""
    parts = [write(target, 40, seed=1, do_sample=True), write(target, 40, seed=2)]
    return Texts(*map(torch.cat, zip(*parts, strict=True)))


class Trained:
    """A whole run of one kind."""

    def __init__(self, kind, target, texts, folder):
        num_layers = 2 if kind == "draft_model" else None
        self.config = replace(CONFIG, kind=kind, num_layers=num_layers)
        self.folder, self.evaluations, self.objective = folder, [], None
        reports = {"on_evaluation": self.evaluations.append, "on_step": self._see}
        self.result = train(target, texts, folder, self.config, name="tiny", dtype=torch.float32, **reports)

    def _see(self, run):
        self.objective = run.objective


@pytest.fixture(scope="session", params=["eagle3", "dflash", "draft_model"])
def trained(request, target, texts, tmp_path_factory):
    return Trained(request.param, target, texts, tmp_path_factory.mktemp(request.param))
