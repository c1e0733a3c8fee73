"""`adapt`: trained on answers to some prompts, measured on others; interrupted, without gain, on bad input."""

import json
import re
from pathlib import Path

import pytest
import torch
from helpers.cli import succeed
from helpers.tiny import identical, tiny_llama
from helpers.training import SMALL, write
from helpers.written import TARGET, TOKENIZER
from helpers.wrong_heads import METHODS
from helpers.wrong_heads import write as write_head
from safetensors.torch import load_file, save_file

import treespec
from treespec.errors import CheckpointError, ConfigError, UnsupportedModelError
from treespec.training import TrainingConfig, adapt, adaptation, train
from treespec.training.text.texts import read_folder

PROMPTS = [f"Say {number} words about {what}" for number in range(8) for what in ("rivers", "clocks", "bread")]
SETTINGS = {"num_depths": 2, "is_mixed": False, "warmup_steps": 2}
OPTIONS = {"answers": 1, "max_length": 96}
PROMPT = torch.tensor([[5, 7, 9, 11]])


@pytest.fixture(scope="module")
def heads(tmp_path_factory):
    """Barely trained drafters of every kind, by kind."""
    folder, texts = tmp_path_factory.mktemp("heads"), write(TARGET, 12)
    for kind in ("eagle3", "dflash", "mtp"):
        train(TARGET, texts, folder / kind, TrainingConfig(kind=kind, **SMALL), dtype=torch.float32)
    return {kind: folder / kind / "drafter" for kind in ("eagle3", "dflash", "mtp")}


def test_the_drafter_gets_better_on_prompts_that_it_was_not_trained_on(heads, tmp_path):
    config = adaptation(num_steps=24, learning_rate=5e-3, **SETTINGS)
    found = adapt(TARGET, TOKENIZER, PROMPTS, tmp_path, head=heads["eagle3"], config=config, **OPTIONS)
    assert found.is_better
    assert found.after["overlap"] > found.before["overlap"]
    assert "| overlap |" in str(found)
    assert json.loads((tmp_path / "adapted.json").read_text()) == {"before": found.before, "after": found.after}
    held_out, trained = (texts_of(tmp_path / name) for name in ("held-out", "texts"))
    assert len(held_out) == 8
    assert len(trained) == 20
    assert not any(answered(text) in map(answered, trained) for text in held_out)
    drafter = treespec.load_drafter(found.folder, TARGET)
    assert drafter.head.target_ids.equal(treespec.load_drafter(heads["eagle3"], TARGET).head.target_ids)
    assert identical(TARGET, PROMPT, treespec.TreeSpeculation(drafter, tree=6)).num_draft_tokens > 0


def texts_of(folder):
    found = read_folder(folder)
    return [TOKENIZER.decode(ids) for ids in found.tokens.split(found.lengths.tolist())]


def answered(text):
    return next(prompt for prompt in PROMPTS if prompt in text)


def test_what_does_not_get_better_stays_as_it_was_and_an_interrupted_run_goes_on(heads, tmp_path):
    config = adaptation(num_steps=2, learning_rate=10.0, save_every=1, **SETTINGS)
    options = {"head": heads["eagle3"], "config": config, **OPTIONS}

    def interrupt(run):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        adapt(TARGET, TOKENIZER, PROMPTS, tmp_path, **options, on_step=interrupt)
    written = []
    found = adapt(TARGET, TOKENIZER, PROMPTS, tmp_path, **options, on_written=written.append)
    assert len(written) == 2, "texts that were written are read"
    assert not found.is_better
    assert "the drafter is the one that was given" in str(found)
    kept, given = (load_file(folder / "model.safetensors") for folder in (found.folder, heads["eagle3"]))
    assert all(torch.allclose(weight.float(), given[name].float(), atol=1e-3) for name, weight in kept.items())
    again = adapt(TARGET, TOKENIZER, PROMPTS, tmp_path, **options)
    assert again == found


def test_output_rows_of_ones_own_stay(heads, tmp_path):
    """Published heads have trained output rows; files of `train` leave them out, as they are the target's."""
    own = tmp_path / "own"
    own.mkdir()
    rows = torch.randn(SMALL["draft_vocab_size"], TARGET.config.hidden_size)
    save_file(load_file(heads["eagle3"] / "model.safetensors") | {"lm_head.weight": rows}, own / "model.safetensors")
    keys = json.loads((heads["eagle3"] / "config.json").read_text())
    (own / "config.json").write_text(json.dumps(keys | {"lm_head_from_target": False}))
    config = adaptation(num_steps=1, learning_rate=1e-12, **SETTINGS)
    found = adapt(TARGET, TOKENIZER, PROMPTS, tmp_path / "out", head=own, config=config, **OPTIONS)
    kept = treespec.load_drafter(found.folder, TARGET).head
    assert torch.allclose(kept.lm_head.weight.float(), rows, atol=1e-2)


def test_bad_input_is_named(heads, tmp_path):
    def run(prompts=PROMPTS, head=heads["eagle3"], model=TARGET, **options):
        config = adaptation(num_steps=1, **SETTINGS)
        adapt(model, TOKENIZER, prompts, tmp_path / "out", head=head, config=config, **{**OPTIONS, **options})

    for prompts in ([], ["one"] * 50):
        with pytest.raises(ConfigError, match="at least 20 different prompts"):
            run(prompts)
    with pytest.raises(ConfigError, match=r"1 of 25 prompts leave no room .* texts of 96 tokens \(the longest has"):
        run([*PROMPTS, "word " * 96])
    with pytest.raises(ConfigError, match="answers must be"):
        run(answers=0)
    with pytest.raises(UnsupportedModelError, match=r"EAGLE-3 heads and MTP layers are adapted, .* is a DFlash"):
        run(head=heads["dflash"])
    with pytest.raises(CheckpointError, match="head of another model"):
        run(model=tiny_llama(vocab_size=len(TOKENIZER), hidden_size=48))
    with pytest.raises(ConfigError, match="no trained drafter for this model is at hand"):
        run(head=None)
    assert not (tmp_path / "out").exists()


def test_the_snippet_of_the_docs_runs(heads, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    config = adaptation(num_steps=1, **SETTINGS)
    names = {"model": TARGET, "tokenizer": TOKENIZER, "prompts": PROMPTS, "head_folder": heads["mtp"], "config": config}
    page = (Path(__file__).parents[2] / "docs" / "training.md").read_text()
    snippet = next(found for found in re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL) if "adapt(" in found)
    exec(snippet.replace("answers=3", "answers=1, max_length=96, config=config"), names | {"treespec": treespec})
    assert "| on held-out prompts | before | after | gain |" in capsys.readouterr().out


def test_the_command_prints_the_gain(heads, tmp_path):
    for part in (TARGET, TOKENIZER):
        part.save_pretrained(tmp_path / "model")
    (tmp_path / "prompts.txt").write_text("\n".join(PROMPTS))
    settings = [f"--set={name}={value}" for name, value in SETTINGS.items()]
    command = ["adapt", tmp_path / "model", "--prompts", tmp_path / "prompts.txt", "--out", tmp_path / "out"]
    sizes = ["--steps=2", "--answers=1", "--max-length=96"]
    done = succeed(*command, "--head", heads["mtp"], *sizes, *settings)
    assert "| on held-out prompts | before | after | gain |" in done.output
    assert "adapted.json" in {path.name for path in (tmp_path / "out").iterdir()}


def test_a_process_that_ends_while_a_drafter_is_kept_leaves_one(tmp_path):
    from treespec.training.adapt import RESULT, _Best

    (tmp_path / "drafter.new").mkdir()
    (tmp_path / "drafter.new" / "config.json").write_text("{}")
    _Best(tmp_path, lambda _: None)
    assert not (tmp_path / "drafter").exists(), "the first copy may not be whole"
    (tmp_path / RESULT).write_text("{}")
    _Best(tmp_path, lambda _: None)
    assert (tmp_path / "drafter" / "config.json").is_file()
    assert not (tmp_path / "drafter.new").exists()


def test_p_eagle_heads_are_not_trained_as_eagle_3(tmp_path):
    """Their module is EAGLE-3's with a mask, their training another."""
    target = tiny_llama(num_layers=8)
    head = write_head(tmp_path / "head", METHODS["peagle"])
    config = TrainingConfig(kind="eagle3", start=str(head), num_layers=1, **SMALL)
    with pytest.raises(CheckpointError, match="of the kind peagle, not EAGLE-3"):
        train(target, write(target, 12), tmp_path / "run", config)
    with pytest.raises(UnsupportedModelError, match="is a PEagle"):
        adapt(target, TOKENIZER, PROMPTS, tmp_path / "out", head=head)
