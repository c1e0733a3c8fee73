"""Sets of prompts."""

from benchmarks.common import prompts


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
