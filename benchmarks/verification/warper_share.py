"""What the warpers that sort cost of whole steps over 262,144 tokens: transformers' own and treespec's.

A random model of Gemma 3 270M's shape with token recycling's trees of 16 nodes; an acceptance length of 1 means that a
step visits one node. Every warper decodes the same text twice per round, once with each form, in turns, from the same
seed; the texts must be equal. Milliseconds per step are medians over the rounds, each round's the mean of its steps.

    python -m benchmarks.verification.warper_share
"""

from __future__ import annotations

from contextlib import nullcontext
from copy import deepcopy
from statistics import median
from typing import Any
from unittest.mock import patch

import torch
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, PreTrainedModel

from benchmarks.common.settings import (
    RESULTS,
    load_average,
    markdown_table,
    parser,
    settings,
    settings_lines,
    write_json,
)
from treespec import TokenRecycling, TreeSpeculation

VOCAB_SIZE, NUM_LIKELY, NUM_NODES, NUM_NEW = 262_144, 64, 16, 24
SPREAD, PEAK = 2.0, 22.0
"""The logits' standard deviation, and the logit of the token that is likely."""
WARPERS: dict[str, dict[str, float]] = {
    "typical_p=0.9": {"typical_p": 0.9},
    "typical_p=0.2": {"typical_p": 0.2},
    "top_p=0.9": {"top_p": 0.9},
}
FORMS = ("transformers", "treespec")


@torch.no_grad()
def random_model(seed: int) -> PreTrainedModel:
    torch.manual_seed(seed)
    sizes = {"hidden_size": 640, "intermediate_size": 2048, "num_hidden_layers": 18, "head_dim": 256}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 1, "tie_word_embeddings": False}
    ends: dict[str, Any] = {"eos_token_id": None, "bos_token_id": None, "pad_token_id": 0}
    model = Gemma3ForCausalLM(Gemma3TextConfig(vocab_size=VOCAB_SIZE, **sizes, **heads, **ends)).eval()
    likely = torch.arange(NUM_LIKELY)
    states = model.model(likely[:, None]).last_hidden_state[:, 0]
    norm = float(states.norm(dim=-1).mean())
    weight = model.lm_head.weight
    weight.normal_(std=SPREAD / norm)
    weight[(likely + 1) % NUM_LIKELY] += PEAK * states / norm**2
    return model


def decode(model: Any, speculation: TreeSpeculation, warper: str, form: str, seed: int) -> torch.Tensor:
    options = {"do_sample": True, "top_k": 0, "max_new_tokens": NUM_NEW, **WARPERS[warper]}
    ids = torch.arange(NUM_LIKELY).repeat(2)[None]
    same = patch("treespec.hf.generation.processors.fast", lambda processor: processor)
    torch.manual_seed(seed)
    with same if form == "transformers" else nullcontext():
        return model.generate(ids, attention_mask=torch.ones_like(ids), **options, custom_generate=speculation)


def measure(model: Any, rounds: int, seed: int) -> list[dict[str, Any]]:
    cells = []
    for warper in WARPERS:
        speculation = TreeSpeculation(TokenRecycling(), tree=NUM_NODES)
        decode(model, speculation, warper, "treespec", seed)  # Fills the table.
        found: dict[str, list[dict[str, float]]] = {form: [] for form in FORMS}
        for turn in range(rounds):
            texts = []
            for form in FORMS if turn % 2 else reversed(FORMS):
                twin = deepcopy(speculation)  # What is learned changes the drafts, and sampled texts with them.
                texts.append(decode(model, twin, warper, form, seed + turn + 1))
                stats = twin.stats
                steps = stats.num_target_passes
                per_step = {
                    phase: 1e3 * seconds / steps for phase, seconds in stats.seconds.items() if phase != "prefill"
                }
                found[form].append(per_step | {"step": sum(per_step.values()), "length": stats.mean_acceptance_length})
            if not torch.equal(*texts):
                raise SystemExit(f"{warper}: the two forms do not decode the same text")
        medians = {
            form: {name: round(median(one[name] for one in many), 3) for name in many[0]}
            for form, many in found.items()
        }
        cells.append({"warper": warper, "rounds": rounds, **medians})
    return cells


def report(data: dict[str, Any]) -> str:
    about = (__doc__ or "").split("\n\n")[1].replace("\n", " ")
    rows = []
    for cell in data["results"]:
        for form in FORMS:
            found = cell[form]
            cells = [f"{found['verify']:.1f}", f"{found['step']:.0f}", f"{found['verify'] / found['step']:.0%}"]
            rows.append([cell["warper"], form, *cells, f"{found['length']:.2f}"])
    header = ["warper", "form", "verification, ms per step", "step, ms", "share", "acceptance length"]
    load = f"Load {data['load_average']} before, {data['load_average_after']} after."
    title = "# Warpers that sort: verification's share of a step"
    return "\n".join([title, "", about, "", markdown_table(header, rows), load, settings_lines(data)])


def main() -> None:
    options = parser(__doc__ or "", threads=2)
    options.add_argument("--rounds", type=int, default=5)
    arguments = options.parse_args()
    torch.set_num_threads(arguments.threads)
    data = settings(seed=arguments.seed)
    data["results"] = measure(random_model(arguments.seed), arguments.rounds, arguments.seed)
    data["load_average_after"] = load_average()
    write_json(RESULTS / "verification" / "warper_share.json", data)
    (RESULTS / "verification" / "warper_share.md").write_text(report(data))
    print(report(data))


if __name__ == "__main__":
    main()
