"""MTP layers in vLLM: rows that join and leave are drafted as one text alone is; the output stays vLLM's."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from helpers import mtp_files
from helpers.engines import churn
from helpers.engines.churn import ENGINE, random_requests
from helpers.engines.engine import run_jobs
from helpers.engines.models import counting_mimo, tiny_mimo
from helpers.engines.server import NUM_NODES, VOCAB, Server, alone, num_like_alone
from jaxtyping import Float
from torch import Tensor

from treespec import load_mtp
from treespec.errors import CheckpointError, UnsupportedModelError
from treespec.tree import TreeBatch
from treespec.vllm import pages
from treespec.vllm.files import Files
from treespec.vllm.heads import load_served_head
from treespec.vllm.mtp import load_served_mtp
from treespec.vllm.options import Options

OPTIONS = Options(7, "head", NUM_NODES, head="mtp")
FILES = Files(None)  # Folders are not fetched.


def config_of(folder: Path, config: Any) -> Any:
    """vLLM's `ModelConfig` as far as MTP layers ask."""
    return SimpleNamespace(model=str(folder), revision=None, hf_text_config=config, trust_remote_code=False)


def states_of(text: list[int], size: int) -> Float[Tensor, "n H"]:
    """States of a pretended target, which depend on the tokens so far."""
    tokens = torch.tensor(text, dtype=torch.float64)
    sums = torch.stack([tokens.cumsum(0), tokens], 1)
    return torch.sin(sums @ torch.linspace(0.1, 2, 2 * size, dtype=torch.float64).view(2, size))


@pytest.mark.parametrize(
    ("kind", "num_layers", "seed", "skipped"),
    [("mimo", 1, 0, 0.0), ("mimo", 3, 1, 0.0), ("mimo", 2, 2, 0.6), ("exaone_moe", 1, 3, 0.0)],
)
def test_every_row_is_drafted_as_if_alone(
    kind: str, num_layers: int, seed: int, skipped: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "SHORT", 8)
    target = mtp_files.write(tmp_path, kind, num_layers).target.double()
    drafter, size, last = load_mtp(target, tmp_path), target.config.hidden_size, target.config.num_hidden_layers
    weights = [module.weight.detach() for module in (target.get_input_embeddings(), target.get_output_embeddings())]
    served = load_served_mtp(str(tmp_path), config_of(tmp_path, target.config), *weights)
    server = Server(served, OPTIONS, seed, skipped, lambda text: states_of(text, size))

    def expected(text: list[int]) -> TreeBatch:
        return alone(drafter, text, prompt_states={last: states_of(text[:-1], size).unsqueeze(0)})

    assert num_like_alone(server, 25 if skipped == 0 else 60, expected) > 30


class Pretended(torch.nn.Module):
    """A model of vLLM's as far as MTP layers ask."""

    def __init__(self, target: Any) -> None:
        super().__init__()
        self.embed_tokens, self.lm_head = target.get_input_embeddings(), target.get_output_embeddings()
        for module in (self.embed_tokens, self.lm_head):
            vars(module)["org_vocab_size"] = VOCAB

    @property
    def model(self) -> torch.nn.Module:
        return self


def test_targets_without_layers_or_without_a_class_are_refused(tmp_path: Path) -> None:
    made = mtp_files.write(tmp_path / "mimo", "mimo")
    model, config = Pretended(made.target), config_of(tmp_path / "mimo", made.target.config)
    for name in ("mtp", str(tmp_path / "mimo")):
        assert load_served_head(name, model, config, FILES).hidden_layers == (made.target.config.num_hidden_layers,)
    made.target.save_pretrained(tmp_path / "plain")
    with pytest.raises(CheckpointError, match="MTP layers"):
        load_served_head("mtp", model, config_of(tmp_path / "plain", made.target.config), FILES)
    unknown = config_of(tmp_path / "mimo", SimpleNamespace())
    with pytest.raises(UnsupportedModelError, match=r"transformers has no class for .*mimo's layers"):
        load_served_head("mtp", model, unknown, FILES)


@pytest.mark.slow
def test_requests_come_and_go(tmp_path: Path) -> None:
    pytest.importorskip("vllm.config")
    jobs = {"churn": {"churn": random_requests(150, VOCAB, seed=1), "has_aborts": False}}
    engine = {**ENGINE, "model": str(tiny_mimo(tmp_path))}
    plain = run_jobs({**engine, "num_gpu_blocks_override": 10}, jobs)
    speculation = {"method": "mtp", "num_speculative_tokens": 1, "tree": 8}
    trees = run_jobs({**engine, "num_gpu_blocks_override": 13, "speculative_config": speculation}, jobs)
    assert trees["churn"]["outputs"] == plain["churn"]["outputs"]
    assert trees["metrics"]["vllm:num_preemptions"] > 0
    assert trees["stats"]["num_accepted_tokens"] > 10


@pytest.mark.slow
def test_right_layers_draft_what_is_accepted(tmp_path: Path) -> None:
    pytest.importorskip("vllm.config")
    prompts = np.random.default_rng(0).integers(0, churn.VOCAB, (12, 20)).tolist()
    params = {"temperature": 0, "max_tokens": 41, "ignore_eos": True, "detokenize": False}
    jobs = {"greedy": {"prompts": prompts, "params": params}}
    engine = {**ENGINE, "model": str(counting_mimo(tmp_path, churn.VOCAB))}
    speculation = {"method": "mtp", "tree": [[0], [1], [0, 0], [0, 0, 0]]}
    trees = run_jobs({**engine, "speculative_config": speculation}, jobs)
    assert trees["greedy"] == run_jobs(engine, jobs)["greedy"]
    # A token of the prompt's pass, then ten steps of three accepted tokens and one more.
    assert trees["stats"]["mean_acceptance_length"] == pytest.approx(41 / 11, abs=0.1)
