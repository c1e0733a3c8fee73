"""MTP layers in vLLM: rows that join and leave are drafted as one text alone is; the output stays vLLM's."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers import mtp_files
from helpers.engines import churn
from helpers.engines.churn import acceptance_length, compared
from helpers.engines.models import counting_mimo, tiny_mimo
from helpers.engines.server import NUM_NODES, ServedTarget, Server, alone, num_like_alone, states_of

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


@pytest.mark.parametrize(
    ("kind", "num_layers", "seed", "skipped"),
    [("mimo", 1, 0, 0.0), ("mimo", 3, 1, 0.6), ("exaone_moe", 1, 3, 0.0)],
)
def test_every_row_is_drafted_as_if_alone(
    kind: str, num_layers: int, seed: int, skipped: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "SHORT", 8)
    target = mtp_files.write(tmp_path, kind, num_layers).target.double()
    drafter, size, last = load_mtp(target, tmp_path), target.config.hidden_size, target.config.num_hidden_layers
    weights = [module.weight.detach() for module in (target.get_input_embeddings(), target.get_output_embeddings())]
    served = load_served_mtp(str(tmp_path), config_of(tmp_path, target.config), *weights)
    server = Server(OPTIONS, seed, served, skipped, lambda text: states_of(text, size))

    def expected(text: list[int], depth: int) -> TreeBatch:
        return alone(drafter, text, depth, prompt_states={last: states_of(text[:-1], size).unsqueeze(0)})

    assert num_like_alone(server, 15 if skipped == 0 else 30, expected) > 20


def test_targets_without_layers_or_without_a_class_are_refused(tmp_path: Path) -> None:
    made = mtp_files.write(tmp_path / "mimo", "mimo")
    model = ServedTarget(made.target.get_input_embeddings(), made.target.get_output_embeddings())
    config = config_of(tmp_path / "mimo", made.target.config)
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
    speculation = {"method": "mtp", "num_speculative_tokens": 1, "tree": 8}
    assert compared(str(tiny_mimo(tmp_path)), speculation)["stats"]["num_accepted_tokens"] > 10


@pytest.mark.slow
def test_right_layers_draft_what_is_accepted(tmp_path: Path) -> None:
    # A token of the prompt's pass, then ten steps of three accepted tokens and one more.
    found = acceptance_length(str(counting_mimo(tmp_path, churn.VOCAB)), {"method": "mtp"})
    assert found == pytest.approx(41 / 11, abs=0.1)
