"""Go on with the head that ships: rounds of writing and training, over as many days as there are.

All that a round needs lies here: the texts so far (`texts/`) and the head that goes on (`head/`; the first round begins
with the one that ships). A round writes batches of all kinds of messages by turns, then trains the head on a share of
the texts, an equal number of tokens of each kind, from a fresh optimiser with a warm-up and a cosine to zero. The head is
replaced where it is better at temperatures 0 and 1 on texts that no round trains on, and the round is a line of
`rounds.jsonl`. Commit all three after a round; killed anywhere, the command goes on. Nothing in a round follows the
clock, so that it may run in the background of a busy machine.

    THP_MEM_ALLOC_ENABLE=1 nice -n 19 python -m recipes.smollm2_head.rounds --out runs --minutes 480 --threads 1
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import torch

from recipes.smollm2_head.corpus import Text, join_texts, read_corpus
from recipes.smollm2_head.write import Writer
from treespec import shipped_head
from treespec.hf.loading import smollm2
from treespec.training import TrainingConfig, train

HERE = Path(__file__).parent
ROUNDS = "rounds.jsonl"
NUM_HELD_OUT = 96
CACHED_BYTES = 4096
"""The most that the features of one token take."""
MODEL_NAME = f"HuggingFaceTB/{smollm2.NAME}"
COMMAND = "python -m recipes.smollm2_head.rounds"


def choose(texts: Sequence[Text], num_tokens: int, seed: int) -> tuple[list[Text], list[Text]]:
    """Held-out texts, and about `num_tokens` to train on: as many of each kind, as far as there are."""
    by_kind: dict[str, list[Text]] = defaultdict(list)
    for text in texts:
        by_kind[text.kind].append(text)
    rng = Random(seed)
    held_out, chosen = list[Text](), list[Text]()
    for number, kind in enumerate(sorted(by_kind, key=lambda kind: sum(len(text.tokens) for text in by_kind[kind]))):
        apart = sorted((text for text in by_kind[kind] if text.is_held_out), key=lambda text: text.order)
        held_out += apart[: NUM_HELD_OUT // len(by_kind)]
        share = num_tokens / (len(by_kind) - number)  # Rarer kinds come first and leave the rest to the others.
        part = take([text for text in by_kind[kind] if not text.is_held_out], share, rng)
        chosen += part
        num_tokens -= sum(len(text.tokens) for text in part)
    return held_out, chosen


def take(texts: Sequence[Text], num_tokens: float, rng: Random) -> list[Text]:
    """Some of the texts, at random, as soon as they have `num_tokens`; or all."""
    found = list[Text]()
    for text in rng.sample(texts, len(texts)):
        if num_tokens <= 0:
            break
        found.append(text)
        num_tokens -= len(text.tokens)
    return found


def train_round(
    model: Any, texts: Sequence[Text], head: Path, folder: Path, args: argparse.Namespace
) -> dict[str, Any]:
    """One round of training from the head's files; its evaluations before and after."""
    held_out, chosen = choose(texts, args.tokens, len(texts))
    config = TrainingConfig(
        start=str(head),
        draft_vocab_size=8192,
        hidden_layers=(2, 15, 27),
        batch_size=4,
        max_length=768,
        learning_rate=args.learning_rate,
        warmup_steps=50,
        tv_weight=0.7,
        tv_start=args.tv_start,
        save_every=20,
        num_held_out=len(held_out),
        max_cache_gb=CACHED_BYTES * (sum(len(text.tokens) for text in held_out) + 1024) / 1e9,
        eval_every=10**9,
        seed=len(texts),
    )
    # Held-out texts first: theirs are the features that are worth keeping.
    found = train(model, join_texts([*held_out, *chosen]), folder, config, name=MODEL_NAME, command=COMMAND)
    measured = [line for line in found.progress.log if "overlap" in line]
    return {"texts": len(texts), "tokens": found.progress.num_tokens, "before": measured[0], "after": measured[-1]}


def is_better(result: dict[str, Any]) -> bool:
    """At temperature 1, and at temperature 0 if there are greedy texts."""
    names = result["before"].keys() & {"tree_16", "sampled_chain_4"}
    return all(result["after"][name] > result["before"][name] for name in names)


def run_round(model: Any, tokenizer: Any, args: argparse.Namespace) -> None:
    """Write, train and, if that made it better, replace the head; a round that was interrupted is finished instead."""
    open_rounds = [int(path.name) for path in args.out.glob("[0-9]*")]
    if not open_rounds:
        writer = Writer(model, tokenizer, args.folder / "texts")
        for _ in range(args.batches):
            written = writer.write()
            print(f"{written[0].kind}: {sum(len(text.tokens) for text in written):,} tokens", flush=True)
    texts = read_corpus(args.folder / "texts")
    count = max(open_rounds, default=len(texts))
    folder = args.out / str(count)
    folder.mkdir(parents=True, exist_ok=True)
    head = args.folder / "head"
    result = train_round(model, texts[:count], head if head.exists() else shipped_head(smollm2.NAME), folder, args)
    if is_better(result):
        shutil.copytree(folder / "drafter", head, dirs_exist_ok=True)
    with (args.folder / ROUNDS).open("a") as lines:
        lines.write(json.dumps(result | {"is_better": is_better(result)}) + "\n")
    folder.rename(args.out / f"round-{count}")
    print(json.dumps(result, indent=1), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="a folder for the states of the rounds")
    parser.add_argument("--folder", type=Path, default=HERE, help="of the texts, the head and the record of the rounds")
    parser.add_argument("--minutes", type=float, default=480, help="no round is begun later than this")
    parser.add_argument("--batches", type=int, default=18, help="batches of 64 texts to write in a round")
    parser.add_argument("--tokens", type=int, default=1_000_000, help="tokens to train on in a round, each once")
    parser.add_argument("--learning-rate", type=float, default=5e-4)
    parser.add_argument("--tv-start", type=float, default=0.5, help="from this share on total variation counts")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model, tokenizer = smollm2.load()
    end = time.monotonic() + 60 * args.minutes
    while time.monotonic() < end:
        run_round(model, tokenizer, args)


if __name__ == "__main__":
    main()
