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
    path, other = tmp_path / "question.jsonl", tmp_path / "speed.jsonl"
    for file, last in ((path, '"turns": ["x"]'), (other, '"turns": ["x"], "sub_category": ""')):
        file.write_text("\n".join(f'{{"question_id": {i}, "category": "c{i // 5}", {last}}}' for i in range(10)))
    alone = [p.name for p in prompts.held_out([path], 8)]
    assert " ".join(alone).replace("Spec-Bench/", "") == "0 (c0) h0 5 (c1) g0 1 (c0) h10 6 (c1) g10"
    assert [p.name for p in prompts.held_out([], 5)] == ["h0", "g0", "h6", "g10", "h13"]
    both = [p.name for p in prompts.held_out([other, path], 16)]
    assert [both[::2], both[3]] == [alone, "SPEED-Bench/5 (c1)"]


def test_speed_bench_as_published_and_as_prepared(tmp_path):
    """Masked texts are left out; a file of it gives all prompts, its categories by turns."""
    masked = f"{prompts.MASKED} FROM THE SOURCE USING SPECDEC_BENCH"
    texts = [("coding", "Sort."), ("coding", masked), ("coding", "Add."), ("qa", "Who?"), ("stem", masked)]
    ids = [{"question_id": f"{n:x}", "category": kind} for n, (kind, _) in enumerate(texts)]
    published = [{**row, "sub_category": "x", "turns": [text, "?"]} for row, (_, text) in zip(ids, texts, strict=True)]
    pq.write_table(pa.Table.from_pylist(published), tmp_path / "test.parquet")
    roles = [[{"role": "system", "content": "Be."}, {"role": "user", "content": text}] for _, text in texts]
    roles[3][1]["content"] = [{"type": "text", "text": "Who\u2028"}, {"type": "image"}, {"type": "text", "text": "?"}]
    rows = [{**row, "messages": turns} for row, turns in zip(ids, roles, strict=True)]
    prepared = [json.dumps(row, ensure_ascii=False) for row in rows]
    (tmp_path / "qualitative.jsonl").write_text("\n".join([*prepared, "", ""]))
    for name, who in (("test.parquet", "Who?"), ("qualitative.jsonl", "Who\u2028?")):
        found = prompts.held_out([tmp_path / name], 3)
        assert [one.text for one in found] == ["Sort.", who, "Add."]
        assert found[1].name == "SPEED-Bench/3 (qa)"
    texts = {prepared[1]: "masked texts only", '{"prompt": 1}': r"category.*got \['prompt'\]", "\n": "x is empty"}
    for text, message in texts.items():
        (tmp_path / "x").write_text(text)
        with pytest.raises(ValueError, match=message):
            prompts.questions(tmp_path / "x")


def test_long_prompts_stand_behind_others(monkeypatch):
    monkeypatch.setattr(prompts, "encode", lambda _, given: {"input_ids": torch.tensor([[1, 2, int(given[0].text)]])})
    some = [prompts.Prompt(name, name) for name in "345"]

    def tokenizer(text, add_special_tokens):
        return {"input_ids": [int(text)] * 4}

    assert prompts.lengthened(tokenizer, some[0], some, 9) == [4, 4, 5, 5, 5, 5, 1, 2, 3]
    assert prompts.lengthened(tokenizer, some[0], some, 2) == [2, 3]
    with pytest.raises(ValueError, match="a context of 99"):
        prompts.lengthened(tokenizer, some[0], some, 99)
