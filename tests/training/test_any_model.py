"""Heads and draft models for targets of other kinds than llama, and the command around it all."""

import re
import shutil
from pathlib import Path

import pytest
import torch
from helpers.tiny import tiny_llama
from helpers.zoo import BY_NAME, build
from safetensors.torch import load_file
from training_texts import VOCAB, write
from transformers import GPT2Config, GPT2LMHeadModel, OPTConfig, OPTForCausalLM
from typer.testing import CliRunner

import treespec
from benchmarks.common.settings import settings as benchmark_settings
from treespec.cli import _command, app
from treespec.errors import ConfigError, UnsupportedModelError
from treespec.training import TrainingConfig, export_head, parse_settings, train
from treespec.training.report import machine
from treespec.training.text.texts import Texts, read_folder, save_texts

NAMES = ["gpt2", "phi", "falcon", "gemma2", "qwen3", "mixtral", "cohere", "opt", "olmo2"]
SMALL = {"num_steps": 2, "num_depths": 2, "num_anchors": 6, "draft_vocab_size": 60, "num_held_out": 2, "batch_size": 4}


def random_texts(vocab_size):
    tokens = torch.randint(3, vocab_size, (240,), generator=torch.Generator().manual_seed(0))
    top = tokens.roll(-1).unsqueeze(1).clone()
    top[19::20] = -1
    return Texts(tokens, torch.full((12,), 20), top)


@pytest.mark.parametrize("kind", ["eagle3", "dflash"])
@pytest.mark.parametrize("name", NAMES)
def test_heads_for_other_architectures_are_trained_and_loaded(name, kind, tmp_path):
    target = build(BY_NAME[name])
    result = train(target, random_texts(96), tmp_path, TrainingConfig(kind=kind, **SMALL))
    speculation = treespec.TreeSpeculation(treespec.load_drafter(result.folder, target), tree=6)
    prompt, options = torch.tensor([[5, 7, 9, 11]]), {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    out = target.generate(prompt, **options, custom_generate=speculation)
    assert out.tolist() == target.generate(prompt, **options).tolist()
    assert speculation.stats.num_draft_tokens > 0


def no_pairs():
    return GPT2LMHeadModel(GPT2Config(vocab_size=96, n_positions=64, n_embd=36, n_layer=2, n_head=4)).eval()


def narrow_words():
    sizes = {"hidden_size": 32, "word_embed_proj_dim": 16, "ffn_dim": 48, "num_hidden_layers": 2}
    return OPTForCausalLM(OPTConfig(vocab_size=96, num_attention_heads=4, **sizes)).eval()


@pytest.mark.parametrize("kind", ["eagle3", "dflash"])
@pytest.mark.parametrize(
    ("make", "words"), [(no_pairs, "heads of size 9"), (narrow_words, "embedding is 16 wide where its hidden states")]
)
def test_targets_that_no_head_fits_are_refused_before_they_read(tmp_path, kind, make, words):
    with pytest.raises(UnsupportedModelError, match=words):
        train(make(), random_texts(96), tmp_path, TrainingConfig(kind=kind, **SMALL))
    assert not list(tmp_path.iterdir())


def test_models_that_change_logits_behind_the_head_are_not_distilled(tmp_path):
    with pytest.raises(UnsupportedModelError, match="behind the output head"):
        train(build(BY_NAME["gemma2"]), random_texts(96), tmp_path, TrainingConfig(kind="draft_model", **SMALL))


def test_a_cut_bias_is_the_nearest_of_its_rank(tmp_path):
    target = tiny_llama(vocab_size=VOCAB, num_layers=3)
    config = TrainingConfig(kind="dflash", **SMALL | {"markov_rank": 6, "learning_rate": 0.02})
    folder = train(target, write(target, 12), tmp_path / "run", config, dtype=torch.float32).folder
    head = treespec.load_drafter(folder, target).head
    whole = head.markov_head.markov_w1.weight @ head.markov_head.markov_w2.weight.T
    left, sizes, right = torch.linalg.svd(whole)
    for rank in (6, 4):
        export_head(folder, target, tmp_path / "cut", torch.float32, has_all=False, markov_rank=rank)
        cut = treespec.load_drafter(tmp_path / "cut", target).head.markov_head
        assert cut.markov_w1.weight.shape == (VOCAB, rank)
        nearest = left[:, :rank] * sizes[:rank] @ right[:rank]
        torch.testing.assert_close(cut.markov_w1.weight @ cut.markov_w2.weight.T, nearest, atol=1e-5, rtol=1e-3)
    with pytest.raises(ConfigError, match="markov_rank"):
        export_head(folder, target, tmp_path / "cut", markov_rank=7)


@pytest.mark.parametrize("kind", ["eagle3", "dflash"])
def test_export_leaves_out_only_what_the_target_has(tmp_path, kind):
    target = tiny_llama(vocab_size=VOCAB, num_layers=3)
    config = TrainingConfig(kind=kind, is_head_frozen=False, **SMALL | {"learning_rate": 0.02})
    folder = train(target, write(target, 12), tmp_path / "run", config, dtype=torch.float32).folder
    own = treespec.load_drafter(folder, target).head
    export_head(folder, target, tmp_path / "own", torch.float32, has_all=False)
    assert "lm_head.weight" in load_file(tmp_path / "own" / "model.safetensors")
    assert treespec.load_drafter(tmp_path / "own", target).head.lm_head.weight.equal(own.lm_head.weight)

    with torch.no_grad():
        rows = target.get_output_embeddings().weight
        rows[own.target_ids] = own.lm_head.weight
    export_head(folder, target, tmp_path / "shared", has_all=False)
    assert not {"lm_head.weight", "embed_tokens.weight"} & set(load_file(tmp_path / "shared" / "model.safetensors"))


@pytest.mark.parametrize("kind", ["eagle3", "dflash"])
def test_export_through_a_coarser_target_loses_nothing(tmp_path, kind):
    target = tiny_llama(vocab_size=VOCAB, num_layers=3)
    folder = train(target, write(target, 12), tmp_path / "run", TrainingConfig(kind=kind, **SMALL)).folder
    export_head(folder, target.bfloat16(), tmp_path / "out")
    own, exported = (load_file(path / "model.safetensors") for path in (folder, tmp_path / "out"))
    assert exported.keys() - own.keys() == {"lm_head.weight", "embed_tokens.weight"}
    assert all(exported[name].equal(tensor) for name, tensor in own.items())


@pytest.mark.parametrize("kind", ["eagle3", "dflash", "draft_model"])
def test_texts_that_fill_the_models_positions_are_cut(tmp_path, kind):
    """A written text ends with a token that the model has no position to read at."""
    target = GPT2LMHeadModel(GPT2Config(vocab_size=96, n_positions=19, n_embd=32, n_layer=3, n_head=4)).eval()
    result = train(target, random_texts(96), tmp_path, TrainingConfig(kind=kind, **SMALL | {"num_steps": 3}))
    assert result.progress.num_tokens == 19 * (4 + 4 + 2)


@pytest.fixture
def folders(tmp_path):
    """A saved target and the texts it wrote, as the command reads them."""
    target = tiny_llama(vocab_size=VOCAB, num_layers=3)
    target.save_pretrained(tmp_path / "target")
    (tmp_path / "texts").mkdir()
    save_texts(tmp_path / "texts" / "text-00000.safetensors", write(target, 12), "")
    return tmp_path


def test_the_command_leaves_a_drafter_a_card_a_log_and_a_curve(folders):
    target, texts, out = (str(folders / name) for name in ("target", "texts", "run"))
    settings = [f"--set={name}={value}" for name, value in SMALL.items() if name != "num_steps"]
    command = ["train", target, "--texts", texts, "--out", out, "--kind", "dflash", "--steps", "3", *settings]
    done = CliRunner().invoke(app, [*command, "--name", "tiny-llama"])
    assert done.exit_code == 0, done.output
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
    assert CliRunner().invoke(app, whole).exit_code == 0
    tensors = load_file(folders / "whole" / "model.safetensors")
    assert tensors["lm_head.weight"].shape == (VOCAB, 32)
    assert tensors["embed_tokens.weight"].dtype == torch.bfloat16
    shutil.rmtree(folders / "run" / "features")
    again = CliRunner().invoke(app, [*command, "--name", "tiny-llama"])
    assert again.exit_code == 0, again.output


def test_a_kind_that_is_set_is_the_kind_everywhere(folders):
    target, texts, out = (str(folders / name) for name in ("target", "texts", "run"))
    settings = ("--set=kind=draft_model", "--set=num_layers=1", "--set=num_held_out=2")
    found = CliRunner().invoke(app, ["train", target, "--texts", texts, "--out", out, "--steps", "1", *settings])
    assert "cannot load a tokenizer" in str(found.exception), "a draft model goes with its target's"


def test_the_processor_is_named_where_it_did_the_work(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"a GPU at {device}")
    assert machine(torch.device("cuda:1")) == "a GPU at cuda:1"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert "GPU" not in machine(torch.device("cpu"))


def test_the_snippets_of_the_training_page_run(folders, monkeypatch):
    page = (Path(__file__).parents[2] / "docs" / "training.md").read_text()
    model, names = tiny_llama(vocab_size=VOCAB, num_layers=3), {"treespec": treespec}
    monkeypatch.chdir(folders)
    monkeypatch.setattr(treespec, "shipped_head", lambda _: Path("runs/dflash/drafter"))
    train(model, read_folder(Path("texts")), "runs/dflash", TrainingConfig(kind="dflash", **SMALL))
    train(model, read_folder(Path("texts")), "runs/draft", TrainingConfig(kind="draft_model", num_layers=2, **SMALL))
    names |= {"model": model, "inputs": {"input_ids": torch.tensor([[5, 7, 9]]), "max_new_tokens": 4}}
    snippets = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    for snippet in snippets:
        exec(snippet.replace("num_steps=1000", "num_steps=1, num_depths=2"), names)
    assert names["result"].evaluation.summary()
    assert parse_settings(set(re.findall(r"--set (\w+=[\w.,-]+)", page)) - {"name=value"})


def test_a_wrong_setting_is_one_line(folders, capsys):
    command = ["train", str(folders / "target"), "--texts", str(folders / "texts"), "--out", str(folders / "run")]
    done = CliRunner().invoke(app, [*command, "--set", "batch=3"])
    assert "no setting 'batch'" in str(done.exception)


@pytest.mark.parametrize("name", ["gpu", "meta", "cuda:99"])
def test_a_device_that_is_none_or_not_there_is_named(folders, name):
    command = ["train", str(folders / "target"), "--texts", str(folders / "texts"), "--out", str(folders / "run")]
    found = CliRunner().invoke(app, [*command, "--device", name]).exception
    assert isinstance(found, ConfigError)
    assert f"--device must be cpu, cuda or cuda:NUMBER, and be there, got '{name}'" in str(found)


def test_the_recorded_command_names_no_folders(monkeypatch):
    given = ["treespec", "train", "/home/me/model", "--out=/home/me/runs/a/", "--texts", "one=/data/x=y/z", "runs/b"]
    monkeypatch.setattr("sys.argv", given)
    for recorded in (_command(), benchmark_settings()["command"]):
        assert recorded.split()[-5:] == ["model", "--out=a", "--texts", "one=z", "runs/b"]
