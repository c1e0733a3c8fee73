"""Every example runs as its reader would run it, on its tiny default model."""

import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
SCRIPTS = (
    "batch",
    "draft_model",
    "hand_written_loop",
    "images",
    "json_schema",
    "other_tokenizer",
    "streaming",
    "tensor_parallel",
)


def run(name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--new-tokens", "24"])
    monkeypatch.syspath_prepend(str(EXAMPLES))
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    return capsys.readouterr().out


def test_no_example_is_left_out():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*SCRIPTS, "example_models"}


@pytest.mark.parametrize("name", ["draft_model", "hand_written_loop", "images", "json_schema", "tensor_parallel"])
def test_greedy_examples_equal_plain_generate(name, capsys, monkeypatch):
    if name == "json_schema":
        pytest.importorskip("xgrammar")
    assert "identical to plain generate: True" in run(name, capsys, monkeypatch)


def test_a_draft_model_with_another_tokenizer(capsys, monkeypatch):
    lines = run("other_tokenizer", capsys, monkeypatch).splitlines()
    assert sum(line == "  identical to plain generate: True" for line in lines) == 2
    assert all(float(line.split()[-1]) > 1.5 for line in lines if "mean acceptance length" in line)


def test_batch_prints_every_row(capsys, monkeypatch):
    out = run("batch", capsys, monkeypatch)
    assert "144 tokens in" in out  # 3 prompts, 2 sequences each, 24 tokens
    assert "over 6 rows" in out


def test_streaming_shows_the_text_once_and_ends(capsys, monkeypatch):
    out = run("streaming", capsys, monkeypatch)
    assert out.count("The tree stands by the river. The tree stands by the") == 1
    assert "mean acceptance length" in out.splitlines()[-1]
