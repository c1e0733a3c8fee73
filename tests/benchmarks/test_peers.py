"""The comparison with peers at test size: what is counted, the report, the protocol with other environments."""

import subprocess
import sys

import pytest
import torch
from helpers.tiny import tiny_llama

from benchmarks.peers.__main__ import agreeing, measured
from benchmarks.peers.contestants import AUTO, OPTIMIZED, PLAIN, ROOT, Compiled, Generate, Output, Process
from benchmarks.peers.report import category, complete, ms_per_token, picture, report
from treespec import SuffixLookup, TreeSpeculation
from treespec.hf.loading import smollm2


def run(seconds: float, num_tokens: int = 5, reading: float = 0.1, agreement: str = "identical") -> dict:
    return {"seconds": seconds, "tokens": [7] * num_tokens, "reading": reading, "agreement": agreement}


NAMES = ("HumanEval/1", "gsm8k-1", "Spec-Bench/3 (qa)", "Spec-Bench/4 (writing)")
PROMPTS = {
    name: {
        PLAIN: run(0.5 + number),
        OPTIMIZED: run(0.4 + number),
        "chain-4": run(0.3 + number, agreement="tie"),
        "tree-8": run(0.3 + number),
        AUTO: run(0.2 + number),
    }
    for number, name in enumerate(NAMES)
}


class Recording:
    """Says how often it was asked for how many tokens."""

    def __init__(self, is_reading_measured: bool) -> None:
        self.is_reading_measured, self.asked = is_reading_measured, []

    def decode(self, inputs, num_new, temperature, seed):
        self.asked.append(num_new)
        return Output([1] * num_new, float(num_new))


def test_trees_have_the_reading_time_of_plain_decoding_with_their_model():
    decoders = {PLAIN: Recording(True), OPTIMIZED: Recording(True), AUTO: Recording(False)}
    runs = measured(decoders, {}, 8, 0.0, turn=1, seed=0)
    assert [*runs] == [*decoders]
    assert decoders[PLAIN].asked == decoders[OPTIMIZED].asked == [8, 1]
    assert decoders[AUTO].asked == [8]
    assert all(runs[name]["reading"] == 1.0 for name in runs)
    assert ms_per_token({"prompt": runs}, AUTO) == [pytest.approx(1000.0)]


def test_outputs_are_compared_with_plain_ones():
    model, inputs = tiny_llama(), {"input_ids": torch.tensor([[5, 6, 7, 8]])}
    tree = TreeSpeculation(SuffixLookup(), tree=4)
    decoders = {PLAIN: Generate(model), OPTIMIZED: Generate(model), "tree-8": Generate(model, custom_generate=tree)}
    runs = measured(decoders, inputs, 6, 0.0, turn=0, seed=0)
    runs["chain-4"] = runs[PLAIN] | {"tokens": [(runs[PLAIN]["tokens"][0] + 1) % 50, *runs[PLAIN]["tokens"][1:]]}
    found = agreeing(model, inputs, runs, 6)
    assert [found[name]["agreement"] for name in (PLAIN, "tree-8", "chain-4")] == [
        "identical",
        "identical",
        "different",
    ]
    assert found["chain-4"]["position"] == 0


def test_report_and_picture(tmp_path):
    settings = {"command": "python -m benchmarks.peers", "versions": {}, "processor": "two cores", "threads": 2}
    found = {"prompts": PROMPTS, "loads": [0.5, 1.0], "left_out": {"vllm": "no environment"}}
    data = {"found": {"T = 0": found | {"run": settings | {"new_tokens": 5}}}}
    picture(data, tmp_path / "peers.png")
    text = report(data, "Title.\n\n    command\n\nAbout.")
    assert (tmp_path / "peers.png").is_file()
    assert "4 prompts, 5 new tokens, load 0.5 to 1.0" in text
    assert "4 tie" in text
    assert "Left out: vLLM, plain: no environment." in text
    assert "| Spec-Bench, talk | 1 |" in text


def test_categories_and_prompts_that_end_at_once():
    assert [category(name) for name in NAMES] == ["HumanEval", "GSM8K", "Spec-Bench, qa", "Spec-Bench, talk"]
    short = {"gsm8k-2": {PLAIN: run(0.5), AUTO: run(0.1, num_tokens=1)}}
    assert [*complete(PROMPTS | short)] == [*NAMES]


def test_another_environment_is_left_out_with_its_reason(tmp_path, monkeypatch):
    monkeypatch.setattr(smollm2, "converted_folder", lambda: tmp_path)
    with pytest.raises(RuntimeError, match="make bench-peers"):
        Process(tmp_path / "absent", "vllm", {}, 1)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    with pytest.raises(RuntimeError, match="unknown"):
        Process(tmp_path, "unknown", {}, 1)


def test_requests_and_answers_are_lines(tmp_path):
    """The protocol with a library that repeats the prompt, in a process as others are started."""
    code = (
        "import benchmarks.peers.process as process\n"
        "process.LIBRARIES['echo'] = lambda folder: lambda prompt, num_new, temperature, seed: prompt[:num_new]\n"
        "process.serve()"
    )
    request = '{"prompt": [3, 4, 5], "num_new": 2, "temperature": 0.0, "seed": 0}\n'
    done = subprocess.run(
        [sys.executable, "-c", code, "echo", "{}", str(tmp_path)],
        input=request, capture_output=True, text=True, cwd=ROOT, check=True,
    )  # fmt: skip
    ready, answer = done.stdout.splitlines()
    assert "ready" in ready
    assert '"tokens": [3, 4]' in answer


@pytest.mark.slow
def test_compiled_plain_decoding_gives_the_same_tokens_with_either_cache():
    class Short(Compiled):
        SLOTS = (16, 32)

    model = tiny_llama()
    compiled, plain = Short(model), Generate(model)
    for length in (5, 12, 20, 6):
        ids = torch.arange(1, length + 1)[None]
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        assert compiled.decode(inputs, 8, 0.0, 0).tokens == plain.decode(inputs, 8, 0.0, 0).tokens
