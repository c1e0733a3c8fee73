"""The comparison with peers at test size: what is counted, the report, the protocol with other environments."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from helpers.tiny import prompt, tiny_llama

from benchmarks.common.prompts import Prompt
from benchmarks.peers import __main__ as peers
from benchmarks.peers import contestants
from benchmarks.peers.contestants import AUTO, FIRST, OPTIMIZED, PLAIN, RANDOM, ROOT, Makers
from benchmarks.peers.report import category, complete, picture, report
from treespec.drafters import SuffixLookup
from treespec.lab import smollm2
from treespec.lab.measure.paired import Bench
from treespec.speedup import SpedUp


def run(seconds: float, num_tokens: int = 5, reading: float = 0.1, agreement: str = "identical") -> dict:
    return {"seconds": seconds, "tokens": num_tokens, "reading": reading, "agreement": agreement}


NAMES = ("HumanEval/1", "gsm8k-1", "Spec-Bench/3 (qa)", "Spec-Bench/4 (writing)")
PROMPTS = {
    name: {
        PLAIN: run(0.5 + number),
        OPTIMIZED: run(0.4 + number),
        "chain-4": run(0.3 + number, agreement="tie"),
        "tree-8": run(0.3 + number),
        AUTO: run(0.2 + number) | {"call": 8 + number},
        "auto-random": run(0.8 + 2 * number),
    }
    for number, name in enumerate(NAMES)
}


def encode(_, prompts):
    ids = torch.cat([prompt(seed=int(one.text)) for one in prompts])
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


@pytest.fixture
def run_peers(tmp_path, monkeypatch):
    """The command with a tiny model, whose drafters are lookups; returns what its result files say."""
    models = iter(range(100))
    monkeypatch.setattr(smollm2, "load", lambda say=None: next(models) >= 0 and (tiny_llama(), None))
    monkeypatch.setattr(smollm2, "converted_folder", lambda: tmp_path / "cache" / "model")
    monkeypatch.setattr(contestants, "fastest_head", lambda model: None)
    monkeypatch.setattr(peers, "encode", encode)
    monkeypatch.setattr(peers, "held_out", lambda _, count: [Prompt(f"p{n}", str(n)) for n in range(count)])
    monkeypatch.setattr(
        peers, "lengthened", lambda *given: encode(None, [given[1]])["input_ids"][0, -given[3] :].tolist()
    )
    monkeypatch.setattr(contestants, "optimize", lambda *_, **__: None)

    def call(*arguments):
        given = ["--prompts", "2", "--new-tokens", "6", "--drafters", "suffix", "--shapes", "chain-2", "tree-4"]
        monkeypatch.setattr("sys.argv", ["peers", *given, "--output", str(tmp_path / "out.json"), *arguments])
        peers.main()
        return json.loads((tmp_path / "out.json").read_text()), (tmp_path / "out.md").read_text()

    return call


def test_a_whole_run_is_kept_and_resumed(run_peers, monkeypatch):
    settings = ["--batches", "1", "2", "--contestants", "lookup", "assisted"]
    settings += ["--temperatures", "0"]
    data, text = run_peers(*settings)
    assert list(data["found"]) == ["T = 0", "batch 2, T = 0"]
    single, batch = data["found"]["T = 0"], data["found"]["batch 2, T = 0"]
    assert [*single["prompts"]] == ["p0", "p1"]
    assert [*batch["prompts"]] == ["p0 | p1"]
    assert [*single["prompts"]["p0"]] == ["plain", "optimized", "lookup", "chain-2-suffix", "tree-4-suffix"]
    assert single["left_out"].keys() == {"assisted"}
    assert batch["left_out"].keys() == {"lookup", "assisted"}
    for found, num_rows in ((single, 1), (batch, 2)):
        for runs in found["prompts"].values():
            assert all(run["tokens"] == 6 * num_rows and run["agreement"] == "identical" for run in runs.values())
            assert runs["plain"]["num_read"] == num_rows
            assert runs["plain"]["passes"] == 6 * num_rows
            assert runs["tree-4-suffix"]["num_read"] == num_rows
    assert "Left out: transformers' assisted generation, draft model: no draft model ships" in text
    monkeypatch.setattr(peers, "agreements", lambda *_: pytest.fail("measured again"))
    assert run_peers(*settings)[0]["found"]["T = 0"]["prompts"] == single["prompts"]
    with pytest.raises(pytest.fail.Exception, match="measured again"):
        run_peers(*settings, "--seed", "1")


def test_a_busy_core_is_shared_while_it_lasts(monkeypatch):
    started, popen, cores = [], subprocess.Popen, os.sched_getaffinity(0)
    monkeypatch.setattr(
        subprocess, "Popen", lambda *given, **options: started.append(popen(*given, **options)) or started[-1]
    )
    with peers.busy_core(2):
        assert len(os.sched_getaffinity(0)) == 1
        assert [os.sched_getaffinity(other.pid) for other in started] == 2 * [os.sched_getaffinity(0)]
        assert [other.poll() for other in started] == [None, None]
    assert all(other.returncode for other in started)
    assert os.sched_getaffinity(0) == cores


def test_first_calls_and_random_drafts_go_by_what_speed_up_returns():
    """First calls by an object each; texts decoded plainly count the prompt's pass as one that decides a token."""
    model = tiny_llama()
    bench = Bench(model, {str(n): encode(None, [Prompt("", str(n))]) for n in range(3)}, 12)
    makers = object.__new__(Makers)
    made, head = [], SimpleNamespace(lm_head=torch.nn.Linear(4, 4), parameters=lambda: [torch.zeros(1)])
    makers._parts, makers.optimized, makers._model = {"head": SimpleNamespace(head=head)}, model, model
    monkeypatched = makers._drafters
    makers._drafters = lambda name: monkeypatched(name) if name == RANDOM else [SuffixLookup()]
    own = makers._auto
    makers._auto = lambda name: made.append(own(name)) or made[-1]
    contestants = makers.make([], [FIRST, RANDOM], ["chain-2", AUTO], True).contestants
    assert [one.name for one in contestants] == [PLAIN, OPTIMIZED, "chain-2-first", "auto-first", "auto-random"]
    decoders = [one.start(bench) for one in contestants]
    for name in bench.inputs:
        runs = [decode(name) for decode in decoders]
        assert len({tuple(run.tokens) for run in runs}) == 1
    assert [type(one) for one in made] == 4 * [SpedUp]
    made[0]._ways[1, False].is_plain = True
    plain = bench.decode("0", {"custom_generate": made[0]})
    assert (plain.num_read, plain.num_passes) == (1, 12)


def reported(prompts, path):
    settings = {"command": "python", "versions": {}, "processor": "two cores", "threads": 2, "new_tokens": 5}
    found = {"prompts": prompts, "run": settings, "loads": [0.5, 1.0], "left_out": {"vllm": "no environment"}}
    picture(data := {"found": {"T = 0": found}}, path)
    assert path.is_file()
    return report(data, "Title.\n\n    command\n\nAbout.")


def test_report_and_picture(tmp_path):
    text = reported(PROMPTS, tmp_path / "peers.png")
    assert "4 prompts, 5 new tokens, load 0.5 to 1.0" in text
    assert "4 tie" in text
    assert "Left out: vLLM, plain: no environment." in text
    assert "| Spec-Bench, talk | 1 |" in text
    assert "| T = 0 | plain, optimized | 450.0 | chain of 4: 1.06" in text
    auto = '| `tree="auto"`'
    assert f"{auto} | 4 | 1.14 (1.06 to 3.00) | 1.07" in text
    assert f"{auto}, random drafts, whole calls | 4 |" in text
    assert f"{auto}, from call 10 on | 2 | 1.08 |" in text


def test_categories_and_prompts_that_end_at_once():
    assert [category(name) for name in NAMES] == ["HumanEval", "GSM8K", "Spec-Bench, qa", "Spec-Bench, talk"]
    assert category("SPEED-Bench/0a1b (low/high: (x))") == "SPEED-Bench, low/high: (x)"
    short = {"gsm8k-2": {PLAIN: run(0.5), AUTO: run(0.1, num_tokens=1)}}
    assert [*complete(PROMPTS | short)] == [*NAMES]


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
