"""Every example runs as its reader would run it, on its tiny default model."""

import json
import re
import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
GREEDY = ("draft_model", "hand_written_loop", "images", "json_schema", "tensor_parallel")


def run(name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--new-tokens", "24"])
    monkeypatch.syspath_prepend(str(EXAMPLES))
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    return capsys.readouterr().out


def test_no_example_is_left_out():
    parts = {"example_models", "vllm_next_runner", "vllm_fixed_shapes"}
    run_here = {*GREEDY, "batch", "other_tokenizer", "streaming"}
    assert {path.stem for path in EXAMPLES.glob("*.py")} == run_here | parts


@pytest.mark.parametrize("name", GREEDY)
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


def test_the_tour_runs_and_has_its_outputs(capsys, monkeypatch):
    """Here on a tiny model; the outputs that a reader sees come from `make tour`."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    from example_models import tiny_model, tiny_tokenizer

    monkeypatch.setattr("treespec.lab.smollm2.load", lambda: (tiny_model(), tiny_tokenizer()))
    notebook = json.loads((EXAMPLES / "tour.ipynb").read_text())
    codes = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    names = {}
    for cell in codes:
        exec(compile("".join(cell["source"]), "tour.ipynb", "exec"), names)
    out = capsys.readouterr().out
    assert out.count("identical to plain generate: True") == 3
    assert "the same again: True" in out
    assert names["result"].error == 0
    stored = [output for cell in codes for output in cell["outputs"]]
    assert not [output for output in stored if output["output_type"] == "error"]
    text = "".join("".join(output.get("text", "")) for output in stored)
    assert text.count("identical to plain generate: True") == 3
    links = re.findall(r"\]\(([^)#]+/[^)#]*)", "".join("".join(cell["source"]) for cell in notebook["cells"]))
    assert len(links) > 3
    assert all((EXAMPLES / link).exists() for link in links)
