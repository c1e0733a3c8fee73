"""Train an MTP layer for the head's target on a part of the recipe's texts, for `load_mtp(model, "OUT/drafter")`.

python -m recipes.smollm2_head.mtp --out runs/mtp --minutes 60
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from random import Random

import torch

from recipes.smollm2_head.corpus import HERE, MODEL_NAME, Text, join_texts, read_corpus, take
from treespec.lab import smollm2
from treespec.training import TrainingConfig, train

COMMAND = "python -m recipes.smollm2_head.mtp"
MAX_LENGTH = 384


def choose(texts: Sequence[Text], num_tokens: int) -> list[Text]:
    """All tasks and openings, and as much talk as there is room for, mixed."""
    rare = [text for text in texts if text.kind in ("tasks", "openings")]
    left = num_tokens - sum(min(len(text.tokens), MAX_LENGTH) for text in rare)
    found = [*rare, *take([text for text in texts if text.kind == "talk"], left, Random(0))]
    return Random(0).sample(found, len(found))


def main() -> None:
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="the folder of the run and the layer")
    parser.add_argument("--folder", type=Path, default=HERE / "texts", help="of the texts")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--tokens", type=int, default=300_000, help="of text")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--mixed", action="store_true", help="multiply in bfloat16, where the processor can")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    config = TrainingConfig(
        kind="mtp",
        draft_vocab_size=8192,
        num_depths=3,
        batch_size=2,
        max_length=MAX_LENGTH,
        learning_rate=1e-3,
        tv_weight=0.7,
        tv_start=0.6,
        minutes=args.minutes,
        num_held_out=12,
        save_every=25,
        is_mixed=args.mixed,
    )
    texts = join_texts(choose(read_corpus(args.folder), args.tokens))
    found = train(smollm2.load()[0], texts, args.out, config, name=MODEL_NAME, command=COMMAND)
    print(found.evaluation.summary())


if __name__ == "__main__":
    main()
