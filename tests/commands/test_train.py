"""`treespec train`: what it writes, what it refuses, and the page about it."""

import re
import shutil
from pathlib import Path

import pytest
import torch
from helpers.cli import invoke, succeed
from helpers.tiny import tiny_llama
from helpers.training import SMALL, VOCAB, write
from safetensors.torch import load_file

import treespec
from treespec.training import TrainingConfig, parse_settings, train
from treespec.training.text.texts import read_folder, save_texts


@pytest.fixture
def folders(tmp_path):
    """A saved target and the texts it wrote, as the command reads them."""
    target = tiny_llama(vocab_size=VOCAB, num_layers=3)
    target.save_pretrained(tmp_path / "target")
    (tmp_path / "texts").mkdir()
    save_texts(tmp_path / "texts" / "text-00000.safetensors", write(target, 12), "")
    return tmp_path


def test_the_command_leaves_a_drafter_a_card_a_log_and_a_curve(folders):
    target, texts, out = (folders / name for name in ("target", "texts", "run"))
    settings = [f"--set={name}={value}" for name, value in SMALL.items() if name != "num_steps"]
    command = ["train", target, "--texts", texts, "--out", out, "--kind", "dflash", "--steps", "3", *settings]
    done = succeed(*command, "--name", "tiny-llama")
    card = (folders / "run" / "drafter" / "README.md").read_text()
    table = [line for line in card.splitlines() if line.startswith(("| depth", "| 1 ", "| 2 "))]
    assert len(table) == 3
    assert all(line in done.output for line in table), "acceptance by depth and rank is printed"
    assert {path.name for path in (folders / "run").iterdir()} == {
        "drafter", "features", "log.csv", "evaluation.json", "curve.png", "state.safetensors",
    }  # fmt: skip
    for words in ("# DSpark head for tiny-llama", "3 steps", "576 tokens in 12 texts", "chain of 2, T = 0"):
        assert words in card
    treespec.load_drafter(folders / "run" / "drafter", tiny_llama(vocab_size=VOCAB, num_layers=3))
    whole = ["export", target, f"{out}/drafter", "--out", str(folders / "whole"), "--dtype", "bfloat16"]
    succeed(*whole)
    tensors = load_file(folders / "whole" / "model.safetensors")
    assert tensors["lm_head.weight"].shape == (VOCAB, 32)
    assert tensors["embed_tokens.weight"].dtype == torch.bfloat16
    shutil.rmtree(folders / "run" / "features")
    succeed(*command, "--name", "tiny-llama")


def test_a_kind_given_by_set_is_used_everywhere(folders):
    target, texts, out = (folders / name for name in ("target", "texts", "run"))
    settings = ("--set=kind=draft_model", "--set=num_layers=1", "--set=num_held_out=2")
    found = invoke("train", target, "--texts", texts, "--out", out, "--steps", "1", *settings)
    assert "cannot load a tokenizer" in str(found.exception), "a draft model goes with its target's"


def test_the_snippets_of_the_training_page_run(folders, monkeypatch):
    page = (Path(__file__).parents[2] / "docs" / "training.md").read_text()
    model, names = tiny_llama(vocab_size=VOCAB, num_layers=3), {"treespec": treespec}
    monkeypatch.chdir(folders)
    monkeypatch.setattr(treespec, "shipped_head", lambda _: Path("runs/dflash/drafter"))
    train(model, read_folder(Path("texts")), "runs/dflash", TrainingConfig(kind="dflash", **SMALL))
    train(model, read_folder(Path("texts")), "runs/draft", TrainingConfig(kind="draft_model", num_layers=2, **SMALL))
    names |= {"model": model, "inputs": {"input_ids": torch.tensor([[5, 7, 9]]), "max_new_tokens": 4}}
    snippets = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    snippets = [snippet for snippet in snippets if "adapt(" not in snippet]  # tests/training/test_adapt.py runs it.
    for snippet in [*snippets[1:], snippets[0]]:  # The page opens with what a run's result is for.
        exec(snippet.replace("num_steps=1000", "num_steps=1, num_depths=2"), names)
    assert names["result"].evaluation.summary()
    assert parse_settings(set(re.findall(r"--set (\w+=[\w.,-]+)", page)) - {"name=value"})
