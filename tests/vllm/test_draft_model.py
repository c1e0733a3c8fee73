"""Draft models in vLLM: rows that join and leave are drafted as one text alone is; the output stays vLLM's."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from helpers import zoo
from helpers.engines import churn
from helpers.engines.churn import ENGINE, random_requests
from helpers.engines.engine import run_jobs
from helpers.engines.models import tiny_gemma3, tiny_llama
from helpers.engines.server import NUM_NODES, VOCAB, Server, alone, num_like_alone

from treespec import DraftModel
from treespec.errors import ConfigError
from treespec.hf.models.make_scorer import make_scorer
from treespec.vllm import draft_model
from treespec.vllm.draft_model import load_served_model
from treespec.vllm.files import Files
from treespec.vllm.options import Options

OPTIONS = Options(7, "draft_model", NUM_NODES, draft_model="given")


def config_of(vocab: int = VOCAB, max_model_len: int = 128) -> Any:
    """vLLM's `ModelConfig` as far as a draft model asks."""
    sizes = {"max_model_len": max_model_len, "get_vocab_size": lambda: vocab}
    return SimpleNamespace(model="tiny", dtype=torch.float64, **sizes)


def load(folder: Path, **config: Any) -> Any:
    return load_served_model(str(folder), config_of(**config), Files(None), 10_000, torch.device("cpu"))


@pytest.mark.parametrize(
    ("make", "seed", "skipped", "most_missed"),
    [(tiny_llama, 0, 0.0, 32), (tiny_llama, 1, 0.6, 32), (tiny_llama, 3, 0.6, 3), (tiny_gemma3, 2, 0.0, 2)],
)
def test_every_row_is_drafted_as_if_alone(
    make: Any, seed: int, skipped: float, most_missed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draft_model, "SHORT", 30)
    monkeypatch.setattr(draft_model, "MOST_MISSED", most_missed)
    model = make(tmp_path, VOCAB).double()
    server, drafter = Server(load(tmp_path), OPTIONS, seed, skipped), DraftModel(make_scorer(model))
    assert num_like_alone(server, 25 if skipped == 0 else 60, lambda text: alone(drafter, text)) > 30


def test_others_are_refused_with_what_to_do(tmp_path: Path) -> None:
    tiny_llama(tmp_path / "llama", VOCAB)
    with pytest.raises(ConfigError, match=r"llama has a vocabulary of 96 tokens, tiny one of 97: "):
        load(tmp_path / "llama", vocab=VOCAB + 1)
    config = tmp_path / "llama" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "quantization_config": {"quant_method": "awq"}}))
    with pytest.raises(ConfigError, match=r"llama is quantised.*: take it unquantised"):
        load(tmp_path / "llama")
    states = zoo.build(zoo.BY_NAME["qwen3_5_text"])
    states.save_pretrained(tmp_path / "states")
    with pytest.raises(ConfigError, match=r"states cannot draft trees in vLLM \(Qwen3_5ForCausalLM\)"):
        load(tmp_path / "states", vocab=states.config.vocab_size)
    learned = zoo.build(zoo.BY_NAME["gpt2"])
    learned.save_pretrained(tmp_path / "learned")
    with pytest.raises(ConfigError, match=r"learned has \d+ positions: set max_model_len to that, from 100000"):
        load(tmp_path / "learned", vocab=learned.config.vocab_size, max_model_len=100_000)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["itself", "another"])
def test_requests_come_and_go(name: str, folders: tuple[str, str], tmp_path: Path) -> None:
    pytest.importorskip("vllm.config")
    tiny_llama(tmp_path, churn.VOCAB, seed=4)
    drafts = {"itself": folders[0], "another": str(tmp_path)}
    jobs = {"churn": {"churn": random_requests(150, churn.VOCAB, seed=1), "has_aborts": False}}
    engine = {**ENGINE, "model": folders[0]}
    plain = run_jobs({**engine, "num_gpu_blocks_override": 10}, jobs)
    speculation = {"method": "draft_model", "model": drafts[name], "num_speculative_tokens": 3, "tree": 8}
    if name == "another":
        speculation |= {"drafter": "merge"}
    trees = run_jobs({**engine, "num_gpu_blocks_override": 13, "speculative_config": speculation}, jobs)
    assert trees["churn"]["outputs"] == plain["churn"]["outputs"]
    assert trees["metrics"]["vllm:num_preemptions"] > 0
    assert trees["stats"]["num_accepted_tokens"] > (500 if name == "itself" else 10)


@pytest.mark.slow
def test_what_the_target_itself_drafts_is_accepted(folders: tuple[str, str]) -> None:
    pytest.importorskip("vllm.config")
    prompts = np.random.default_rng(0).integers(0, churn.VOCAB, (12, 20)).tolist()
    params = {"temperature": 0, "max_tokens": 41, "ignore_eos": True, "detokenize": False}
    jobs = {"greedy": {"prompts": prompts, "params": params}}
    engine = {**ENGINE, "model": folders[0]}
    speculation = {"method": "draft_model", "model": folders[0], "tree": [[0], [1], [0, 0], [0, 0, 0]]}
    trees = run_jobs({**engine, "speculative_config": speculation}, jobs)
    assert trees["greedy"] == run_jobs(engine, jobs)["greedy"]
    # A token of the prompt's pass, then ten steps of three accepted tokens and one more.
    assert trees["stats"]["mean_acceptance_length"] == pytest.approx(41 / 11, abs=0.1)
