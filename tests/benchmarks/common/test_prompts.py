"""Sets of prompts."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from benchmarks.common import prompts


def test_prompts_are_of_all_sources_by_turns(tmp_path, monkeypatch):
    for name, letter in (("human_eval", "h"), ("gsm8k", "g")):
        found = [prompts.Prompt(f"{letter}{i}", "") for i in range(20)]
        monkeypatch.setattr(prompts, name, lambda found=found: found)
    lines = [f'{{"question_id": {i}, "category": "c{i % 2}", "turns": ["x"]}}' for i in range(10)]
    path = tmp_path / "question.jsonl"
    path.write_text("\n".join(lines))
    assert [p.name[0] for p in prompts.held_out(path, 8)] == list("ShSgShSg")
    assert [p.name for p in prompts.held_out(None, 5)] == ["h0", "g0", "h6", "g10", "h13"]


def test_speed_bench_as_published_and_as_prepared(tmp_path):
    """Masked texts are left out; a file of it gives all prompts, its categories by turns."""
    masked = f"{prompts.MASKED} FROM THE SOURCE USING SPECDEC_BENCH"
    texts = [("coding", "Sort."), ("coding", masked), ("coding", "Add."), ("qa", "Who?"), ("stem", masked)]
    ids = [{"question_id": f"{n:x}", "category": kind} for n, (kind, _) in enumerate(texts)]
    published = [{**row, "sub_category": "x", "turns": [text, "?"]} for row, (_, text) in zip(ids, texts, strict=True)]
    pq.write_table(pa.Table.from_pylist(published), tmp_path / "test.parquet")
    roles = [[{"role": "system", "content": "Be."}, {"role": "user", "content": text}] for _, text in texts]
    prepared = [json.dumps({**row, "messages": turns}) for row, turns in zip(ids, roles, strict=True)]
    (tmp_path / "qualitative.jsonl").write_text("\n".join(prepared))
    for name in ("test.parquet", "qualitative.jsonl"):
        found = prompts.held_out(tmp_path / name, 3)
        assert [one.text for one in found] == ["Sort.", "Who?", "Add."]
        assert found[1].name == "SPEED-Bench/3 (qa)"
    (tmp_path / "masked.jsonl").write_text(prepared[1])
    with pytest.raises(ValueError, match="masked texts only"):
        prompts.questions(tmp_path / "masked.jsonl")
    (tmp_path / "other.jsonl").write_text('{"prompt": "x"}')
    with pytest.raises(ValueError, match=r"question_id, category.*got \['prompt'\]"):
        prompts.questions(tmp_path / "other.jsonl")


def test_long_prompts_stand_behind_others(monkeypatch):
    monkeypatch.setattr(prompts, "encode", lambda _, given: {"input_ids": torch.tensor([[1, 2, int(given[0].text)]])})
    some = [prompts.Prompt(name, name) for name in "345"]

    def tokenizer(text, add_special_tokens):
        return {"input_ids": [int(text)] * 4}

    assert prompts.lengthened(tokenizer, some[0], some, 9) == [4, 4, 5, 5, 5, 5, 1, 2, 3]
    assert prompts.lengthened(tokenizer, some[0], some, 2) == [2, 3]
    with pytest.raises(ValueError, match="a context of 99"):
        prompts.lengthened(tokenizer, some[0], some, 99)
