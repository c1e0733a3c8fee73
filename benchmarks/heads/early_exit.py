"""How often a model's first layers already know its next token: is an early exit worth it without training?

The model continues the demo's prompts greedily. One pass over each text then gives the hidden state behind every layer;
the final norm and the head on that of layer k say what an early exit there would have drafted. As drafting greedily
along the text is all that counts for a chain, its acceptance length follows from the same record. Written to
benchmarks/results/heads/early_exit.{json,md}.

    python -m benchmarks.heads.early_exit [--tokens 64]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from rich.progress import track
from torch import Tensor

from benchmarks.common.prompts import DEMO, encode
from benchmarks.common.settings import (
    RESULTS,
    load_average,
    markdown_table,
    parser,
    settings,
    settings_lines,
    write_json,
)
from treespec.drafters import EarlyExit
from treespec.hf import TreeSpeculation
from treespec.hf.loading import smollm2
from treespec.policies import Chain

EXITS = (5, 10, 15, 20, 25, 28)
CHAIN = 4


@torch.inference_mode()
def ranks_of_text(model: Any, text: Tensor, num_prompt: int) -> dict[int, list[int]]:
    """By exit: the rank that the exit gives to every emitted token of text int64 [1, T] in its distribution."""
    states = model(input_ids=text, output_hidden_states=True, use_cache=False).hidden_states
    chosen = text[0, num_prompt:]
    ranks = {}
    for k in EXITS:
        logits = model.lm_head(model.model.norm(states[k][0, num_prompt - 1 : -1]))
        ranks[k] = (logits > logits.gather(1, chosen.unsqueeze(1))).sum(1).tolist()
    return ranks


def chain_acceptance(ranks: Sequence[int]) -> list[int]:
    """Acceptance length of every step of a greedy chain over a text: accepted draft tokens + 1."""
    lengths, position = [], 0
    while position < len(ranks):
        accepted = 0
        # The draft begins at the root's next token; the last token of a step is the model's own.
        while accepted < CHAIN and position + accepted < len(ranks) - 1 and ranks[position + accepted] == 0:
            accepted += 1
        lengths.append(accepted + 1)
        position += accepted + 1
    return lengths


def report(data: dict) -> str:
    header = ["exit after layer", "top-1", "in the top 4", "in the top 16", f"acceptance length, chain of {CHAIN}"]
    shares = ("top1", "top4", "top16")
    rows = [
        [f"{k} of {data['num_layers']}", *(f"{row[name]:.3f}" for name in shares), f"{row['acceptance']:.2f}"]
        for k, row in data["exits"].items()
    ]
    return (
        "# What the first layers of a model that was not trained to leave early know of its next token\n\n"
        f"{smollm2.NAME}, {data['num_texts']} prompts, {data['num_tokens']} tokens decoded greedily; shares of tokens "
        f"that the exit ranks first, among its first 4 and 16.\n\n{markdown_table(header, rows)}\n"
        f"A real run of the drafter with exit {data['checked_exit']} and a chain of {CHAIN} on the first prompt had "
        f"the acceptance length {data['checked_acceptance']:.3f}, the record says "
        f"{data['recorded_acceptance']:.3f}.\n\n"
        f"{settings_lines(data)}"
    )


def main() -> None:
    arguments = parser(__doc__ or "", threads=1)
    arguments.add_argument("--tokens", type=int, default=64, help="new tokens per prompt")
    args = arguments.parse_args()
    torch.set_num_threads(args.threads)
    model: Any
    model, tokenizer = smollm2.load()
    options = {"max_new_tokens": args.tokens, "do_sample": False}
    ranks: list[dict[int, list[int]]] = []
    load = load_average()
    for prompt in track(DEMO, description="texts"):
        inputs = encode(tokenizer, [prompt])
        text = model.generate(**inputs, **options)
        ranks.append(ranks_of_text(model, text, inputs["input_ids"].shape[1]))
    checked = EXITS[-1]
    speculation = TreeSpeculation(EarlyExit(checked), tree=Chain(CHAIN))
    model.generate(**encode(tokenizer, DEMO[:1]), **options, custom_generate=speculation)
    recorded = chain_acceptance(ranks[0][checked])
    exits = {}
    for k in EXITS:
        every = [rank for text in ranks for rank in text[k]]
        steps = [length for text in ranks for length in chain_acceptance(text[k])]
        shares = {f"top{n}": sum(rank < n for rank in every) / len(every) for n in (1, 4, 16)}
        exits[k] = shares | {"acceptance": sum(steps) / len(steps)}
    data = settings(
        exits=exits,
        ranks=ranks,
        num_layers=model.config.num_hidden_layers,
        num_texts=len(ranks),
        num_tokens=sum(len(text[EXITS[0]]) for text in ranks),
        checked_exit=checked,
        checked_acceptance=speculation.stats.mean_acceptance_length,
        recorded_acceptance=sum(recorded) / len(recorded),
        load_average=load,
    )
    write_json(RESULTS / "heads" / "early_exit.json", data)
    (RESULTS / "heads" / "early_exit.md").write_text(report(data))
    print(report(data))


if __name__ == "__main__":
    main()
