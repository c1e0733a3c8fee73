"""The comparison of trees with plain vLLM on CUDA: what is made of the engines' outputs."""

from benchmarks.vllm import cuda


def part(ids, **more):
    return {"ids": ids, "again": 2, "solo": None, "graphs": "NONE", "attention": "TRITON_ATTN", **more}


def test_texts_are_compared_with_those_of_the_reference():
    parts = {
        "f32 eager plain": part([[1, 2], [3, 4]]),
        "f32 eager tree": part([[1, 2], [3, 5]], stats={"num_steps": 7, "num_trees": 3}),
        "bf16 tree": part([[1, 2], [3, 4]]),
        "bf16 flex tree": {"error": "UnsupportedModeError: FLEX_ATTENTION"},
    }
    plain, tree, alone, refused = cuda.rows_of(parts)
    assert (tree["reference"], tree["identical"]) == ("f32 eager plain", 1)
    assert not any("identical" in row for row in (plain, alone))
    assert "ids" not in tree
    data = {"vllm": "0.32.0", "card": "a card", "rows": [plain, tree, alone, refused], "sampled": None}
    text = cuda.report({**data, "command": "run", "processor": "one", "threads": 1, "versions": {}})
    assert "| f32 eager tree | NONE | TRITON_ATTN | 1 of 16, f32 eager plain | 2 of 16 | 7 | 3 |" in text
    assert "| bf16 flex tree |  |  | UnsupportedModeError: FLEX_ATTENTION |" in text


class Clocked:
    """An engine whose batches of `at_once` texts take the seconds given, in steps of two tokens each."""

    def __init__(self, monkeypatch, seconds):
        self.now, self.seconds, self.counts = 0.0, list(seconds), dict.fromkeys(cuda.COUNTS, 0)
        monkeypatch.setattr(cuda.time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(cuda, "generate", self.generate)

    def generate(self, vllm, llm, batch):
        self.now += self.seconds.pop(0)
        steps, texts = cuda.TOKENS // 2, len(batch) * cuda.TOKENS // 2
        added = (steps, texts, texts, 3 * texts, texts, 10.0 * steps, 4.0 * steps)
        self.counts = {key: value + more for (key, value), more in zip(self.counts.items(), added, strict=True)}

    def collective_rpc(self, name):
        return [dict(self.counts)]


def test_times_are_per_token_and_per_step(monkeypatch):
    batches, seconds = [["a", "b"]] * 3, [0.256, 0.512, 1.024]
    tree = cuda.measure(None, Clocked(monkeypatch, seconds), batches, "bf16 tree")
    assert tree["ms_per_token"] == [1.0, 2.0, 4.0]
    row = cuda.timed_cells("bf16 tree", {"nodes": 4, "at_once": 2, **tree})
    assert row == ["bf16 tree", "4", "2", "2.000", "1.000", "4.000", "9.33", "10.00", "4.00", "4.00", "2.00"]
    plain = cuda.measure(None, Clocked(monkeypatch, seconds), batches, "bf16 plain")
    assert cuda.timed_cells("bf16 plain", {"nodes": None, "at_once": 2, **plain})[5:8] == ["4.000", "4.67", ""]
    ngram = cuda.measure(None, Clocked(monkeypatch, seconds), batches, "bf16 ngram")
    assert cuda.timed_cells("bf16 ngram", {"nodes": None, "at_once": 2, **ngram})[6:] == [""] * 5
