"""Is greedy tree speculation identical to plain `generate`?

SmolLM2-135M continues 40 prompts from HumanEval, GSM8K and Spec-Bench with 128 new tokens each, by trees of 8 and 32
nodes in batches of 1 and 4; every output is compared with plain `generate` of the single prompt. A divergence is
excused only where plain's top two logits lie within 1e-4, and then the rest is checked too (see `reference.compare`).
So that the trees' branches are exercised, accepted nodes of rank 1 and more are counted: a chain could not have had
them.

Progress is saved after every batch: started again with the same options, the run goes on where it stopped. Results:
benchmarks/results/greedy_identity.{json,md}.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from benchmarks.common import prompts
from benchmarks.common.outputs import strip_padding
from benchmarks.common.progress import progress_bar
from benchmarks.common.settings import (
    RESULTS,
    load_average,
    markdown_table,
    parser,
    settings,
    settings_lines,
    write_json,
)
from treespec import SuffixLookup, TokenRecycling, TreeSpeculation
from treespec.hf.loading import smollm2
from treespec.lab.selftest.agreement import TIE, Plain, compare, plain_greedy

TREE_SIZES, BATCH_SIZES = (8, 32), (1, 4)
CONFIGURATIONS = [(size, batch) for batch in BATCH_SIZES for size in TREE_SIZES]
COUNTERS = ("num_target_passes", "num_drafts", "num_draft_tokens", "num_accepted_tokens", "num_emitted_tokens")


def main() -> None:
    args = _arguments()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    console = Console()
    model, tokenizer = smollm2.load(say=console.print)
    chosen = prompts.mixed(args.prompts, args.spec_bench, console.print)
    state = _State(args.output.with_suffix(".partial.json"), [p.name for p in chosen], args)
    with progress_bar(console) as progress:
        task = progress.add_task("plain", total=len(chosen) * (1 + len(CONFIGURATIONS)))
        for prompt in chosen:
            if prompt.name not in state.data["plain"]:
                plain = plain_greedy(model, prompts.encode(tokenizer, [prompt]), args.new_tokens)
                state.data["plain"][prompt.name] = vars(plain)
                state.save()
            progress.advance(task)
        plains = {name: Plain(**plain) for name, plain in state.data["plain"].items()}
        for size, batch_size in CONFIGURATIONS:
            progress.update(task, description=f"trees of {size}, batch {batch_size}")
            speculation = TreeSpeculation([TokenRecycling(), SuffixLookup()], tree=size, seed=args.seed)
            for start in range(0, len(chosen), batch_size):
                group, key = chosen[start : start + batch_size], f"{size}/{batch_size}/{start}"
                if key not in state.data["batches"]:
                    batch = decode(model, tokenizer, speculation, group, plains, args.new_tokens)
                    state.data["batches"][key] = batch
                    state.save()
                progress.advance(task, len(group))
    finish(state, args, console)


def decode(
    model: Any,
    tokenizer: Any,
    speculation: TreeSpeculation,
    group: list[prompts.Prompt],
    plains: dict[str, Plain],
    num_new: int,
) -> dict[str, Any]:
    """One batch by speculation, every row compared: what is kept of it in the result file."""
    inputs = prompts.encode(tokenizer, group)
    begin = time.perf_counter()
    sequences = model.generate(**inputs, max_new_tokens=num_new, do_sample=False, custom_generate=speculation)
    seconds = time.perf_counter() - begin
    rows = []
    for prompt, ids, mask, sequence in zip(group, *inputs.values(), sequences, strict=True):
        output = strip_padding(sequence[len(ids) :].tolist(), model.generation_config.eos_token_id)
        agreement = compare(model, ids[mask.bool()], plains[prompt.name], output)
        rows.append({"prompt": prompt.name, "tokens": len(output), **vars(agreement)})
    stats = speculation.stats
    ranks = {str(rank): count for rank, count in sorted(stats.num_accepted_at_rank.items())}
    counters = {name: getattr(stats, name) for name in COUNTERS}
    return {"rows": rows, "seconds": seconds, "num_accepted_at_rank": ranks, **counters}


def summary(batches: dict[str, Any], size: int, batch_size: int) -> dict[str, Any]:
    """One configuration's totals."""
    mine = [batch for key, batch in batches.items() if key.startswith(f"{size}/{batch_size}/")]
    rows = [row for batch in mine for row in batch["rows"]]
    ranks = sum((Counter(batch["num_accepted_at_rank"]) for batch in mine), Counter())
    drafts = sum(batch["num_drafts"] for batch in mine)
    return {
        "tree_size": size,
        "batch_size": batch_size,
        "num_prompts": len(rows),
        "num_tokens": sum(row["tokens"] for row in rows),
        "num_identical": sum(row["position"] is None for row in rows),
        "num_excused": sum(row["is_excused"] for row in rows),
        "divergences": [row for row in rows if row["position"] is not None],
        "num_accepted_at_rank": dict(sorted(ranks.items())),
        "num_accepted_beyond_rank_0": ranks.total() - ranks["0"],
        "mean_acceptance_length": 1 + sum(batch["num_accepted_tokens"] for batch in mine) / drafts,
        "num_target_passes": sum(batch["num_target_passes"] for batch in mine),
        "seconds": sum(batch["seconds"] for batch in mine),
    }


def finish(state: _State, args: argparse.Namespace, console: Console) -> None:
    """Write and print the result; the exit status says whether every output was right."""
    totals = [summary(state.data["batches"], size, batch_size) for size, batch_size in CONFIGURATIONS]
    is_right = all(
        row["num_identical"] + row["num_excused"] == row["num_prompts"] and row["num_accepted_beyond_rank_0"] > 0
        for row in totals
    )
    data = state.data["settings"] | {"load_average_after": load_average(), "is_right": is_right, "summary": totals}
    plain_gaps = {name: min(plain["gaps"]) for name, plain in state.data["plain"].items()}
    write_json(args.output, data | {"smallest_plain_gap": plain_gaps, "batches": state.data["batches"]})
    args.output.with_suffix(".md").write_text(report(data, plain_gaps))
    state.path.unlink()
    console.print(report(data, plain_gaps), markup=False, soft_wrap=True)
    sys.exit(0 if is_right else 1)


def report(data: dict[str, Any], plain_gaps: dict[str, float]) -> str:
    header = [
        "nodes",
        "batch",
        "identical",
        "excused ties",
        "wrong",
        "accepted of rank ≥ 1",
        "acceptance length",
        "target passes",
    ]
    rows = [
        [
            str(row["tree_size"]),
            str(row["batch_size"]),
            f"{row['num_identical']} of {row['num_prompts']}",
            str(row["num_excused"]),
            str(row["num_prompts"] - row["num_identical"] - row["num_excused"]),
            str(row["num_accepted_beyond_rank_0"]),
            f"{row['mean_acceptance_length']:.2f}",
            str(row["num_target_passes"]),
        ]
        for row in data["summary"]
    ]
    divergences = [
        f"- {row['prompt']}, {total['tree_size']} nodes, batch {total['batch_size']}: token {row['position']}, plain's "
        f"top-two gap {'none (lengths differ)' if row['gap'] is None else format(row['gap'], '.1e')}, "
        f"{'excused' if row['is_excused'] else 'WRONG'}\n"
        for total in data["summary"]
        for row in total["divergences"]
    ]
    verdict = "identical" if data["is_right"] else "NOT IDENTICAL"
    return (
        f"# Greedy tree speculation against plain `generate`: {verdict}\n\n"
        f"{smollm2.NAME}, float32, {len(plain_gaps)} prompts, up to {data['new_tokens']} new tokens each; drafters: "
        f"token recycling and suffix lookup, merged. A tie is a top-two gap of plain's logits of at most {TIE:g}; the "
        f"smallest gap met by plain decoding was {min(plain_gaps.values()):.1e}.\n\n"
        + markdown_table(header, rows)
        + "\n"
        + ("Divergences:\n\n" + "".join(divergences) if divergences else "No divergence.\n")
        + f"\nSeed {data['seed']}, load average {data['load_average']} before, {data['load_average_after']} after"
        + (", resumed after a stop" if data["is_resumed"] else "")
        + ". "
        + settings_lines(data)
    )


class _State:
    """What is done so far, on disk."""

    def __init__(self, path: Path, names: list[str], args: argparse.Namespace) -> None:
        self.path = path
        options = {"new_tokens": args.new_tokens, "seed": args.seed, "prompts": names}
        if path.is_file():
            self.data = json.loads(path.read_text())
            if all(self.data["settings"].get(name) == value for name, value in options.items()):
                self.data["settings"]["is_resumed"] = True
                return
        self.data = {"settings": settings(**options, is_resumed=False), "plain": {}, "batches": {}}

    def save(self) -> None:
        write_json(self.path, self.data)


def _arguments() -> argparse.Namespace:
    options = parser(__doc__ or "")
    options.add_argument("--spec-bench", metavar="PATH", help="question.jsonl of Spec-Bench")
    options.add_argument("--prompts", type=int, default=40)
    options.add_argument("--new-tokens", type=int, default=128)
    options.add_argument("--output", type=Path, default=RESULTS / "greedy_identity.json")
    return options.parse_args()


if __name__ == "__main__":
    main()
