"""The README's Python snippets run, in order, on tiny models that stand in for the ones it names."""

import re
import sys
from pathlib import Path

import pytest
import torch
from helpers.tiny import noisy_copy, tiny_llama
from transformers import AutoModelForCausalLM, AutoTokenizer

import treespec

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


@pytest.fixture
def stand_ins(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    from example_models import tiny_tokenizer

    target = tiny_llama(vocab_size=97)
    models = {"HuggingFaceTB/SmolLM2-1.7B-Instruct": target, "HuggingFaceTB/SmolLM2-135M-Instruct": noisy_copy(target)}
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", models.__getitem__)
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", lambda name: tiny_tokenizer())
    yield
    sys.modules.pop("example_models", None)


def test_python_snippets_run_in_order(stand_ins):
    snippets = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert len(snippets) >= 4
    names: dict = {}
    torch.manual_seed(0)
    for number, snippet in enumerate(snippets):
        exec(compile(snippet, "README.md", "exec"), names)
        if number == 0:  # Greedy.
            assert names["out"].equal(names["model"].generate(**names["inputs"], max_new_tokens=64, do_sample=False))
    assert names["speculation"].stats.num_emitted_tokens == 64
    assert isinstance(names["verdict"], treespec.Verdict)
