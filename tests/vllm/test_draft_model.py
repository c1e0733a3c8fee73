"""Draft models in vLLM: rows that join and leave are drafted as one text alone is; the output stays vLLM's."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers import zoo
from helpers.engines.churn import acceptance_length, compared
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
    ("make", "seed", "skipped", "most_missed"), [(tiny_llama, 1, 0.6, 32), (tiny_gemma3, 2, 0.3, 2)]
)
def test_every_row_is_drafted_as_if_alone(
    make: Any, seed: int, skipped: float, most_missed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draft_model, "SHORT", 30)
    monkeypatch.setattr(draft_model, "MOST_MISSED", most_missed)
    model = make(tmp_path, VOCAB).double()
    server, drafter = Server(OPTIONS, seed, load(tmp_path), skipped), DraftModel(make_scorer(model))
    assert num_like_alone(server, 30, lambda text, depth: alone(drafter, text, depth)) > 20


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
def test_requests_come_and_go(folders: tuple[str, str]) -> None:
    speculation = {"method": "draft_model", "model": folders[0], "num_speculative_tokens": 3, "tree": 8}
    assert compared(folders[0], speculation)["stats"]["num_accepted_tokens"] > 500


@pytest.mark.slow
def test_what_the_target_itself_drafts_is_accepted(folders: tuple[str, str]) -> None:
    # A token of the prompt's pass, then ten steps of three accepted tokens and one more.
    found = acceptance_length(folders[0], {"method": "draft_model", "model": folders[0]})
    assert found == pytest.approx(41 / 11, abs=0.1)
