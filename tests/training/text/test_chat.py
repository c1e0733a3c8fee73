"""Turns of chat templates, ends of answers, files of prompts."""

import copy

import pytest
from helpers.text_tokenizers import byte_level
from helpers.written import TOKENIZER, chat_tokenizer, spell

from treespec.errors import ConfigError
from treespec.training.text.chat import Turns, chat_turns, read_prompts


def test_turns_are_the_templates_own_tokens():
    turns = chat_turns(TOKENIZER)
    assert turns == Turns(spell("<s>user\n"), spell("</s>\n<s>assistant\n"))
    assert chat_turns(byte_level(400)) == Turns([1], []), "without a template a text begins as texts do"
    mute = chat_tokenizer()
    mute.chat_template = "{{ 'Hello' }}"
    with pytest.raises(ConfigError, match="does not contain the user's message"):
        chat_turns(mute)
    bare = copy.deepcopy(byte_level(400))
    bare.bos_token = bare.eos_token = None
    with pytest.raises(ConfigError, match="no first token"):
        chat_turns(bare)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        *(("jsonl", line, "expected one") for line in (b"Why?", b"[1]", b'{"text": "Why?"}', b'{"prompt": 1}')),
        ("txt", b"\n \n", "holds no message"),
        ("txt", b"caf\xe9\n", "not UTF-8 text"),
    ],
)
def test_files_without_prompts_are_refused(tmp_path, name, content, words):
    path = tmp_path / f"prompts.{name}"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=words):
        read_prompts(path)


def test_only_line_feeds_end_a_prompt(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "a\u2028b"}\r\n\n{"prompt": "c"}', encoding="utf-8")
    assert read_prompts(path) == ["a\u2028b", "c"]
