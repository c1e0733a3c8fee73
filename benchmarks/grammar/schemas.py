"""JSON schemas, with requests (`tasks.json`), and their grammars by xgrammar. The texts that they allow are short."""

import json
from pathlib import Path
from typing import Any, NamedTuple

from transformers import PreTrainedTokenizerBase

from treespec.grammars import GrammarProcessor

NEW_TOKENS = 220
"""More than any text of the schemas can have, at one token per character."""


class Task(NamedTuple):
    """A schema and what is asked for it."""

    schema: dict[str, Any]
    requests: list[str]


FILE = Path(__file__).parent / "tasks.json"
TASKS = {name: Task(**task) for name, task in json.loads(FILE.read_text()).items()}


def compiler(tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> Any:
    """An xgrammar compiler for the tokenizer."""
    import xgrammar

    ends: list[Any] = [tokenizer.eos_token_id]
    info = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=vocab_size, stop_token_ids=ends)
    return xgrammar.GrammarCompiler(info)


def processor(grammars: Any, schema: dict[str, Any]) -> GrammarProcessor:
    """Under the schema, on one line as `json.dumps` writes it."""
    return GrammarProcessor(grammars.compile_json_schema(json.dumps(schema), any_whitespace=False))
