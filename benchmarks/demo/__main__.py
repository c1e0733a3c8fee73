"""The demo: SmolLM2-135M on prompts of different kinds, plain, by prompt lookup, by a chain and by a tree.

Prompt lookup is transformers' own. All contestants share the model, its packed linear layers, threads, arguments and
stopping criteria. Rounds are paired and interleaved: each round decodes every prompt once with every contestant, in
rotating order. Drafts come from the head that ships for the model (`treespec train`), merged with token recycling and
suffix lookup; in every round these two start from text that the model wrote by itself (`treespec warm-up`), and learn
over the round's prompts. No prompt of the demo took part in either. Chain and tree have the sizes that were found to be
the fastest ones. Pictures go to demo/.
"""

import argparse
import os
import sys
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console

from benchmarks.common import prompts
from benchmarks.common.prompts import Prompt
from benchmarks.common.settings import load_average, parser, settings, write_json
from benchmarks.demo.picture import most_instructive_step, node_probs, terminal_tree
from treespec import Chain, TreeSpeculation, WarmStart, load_drafter, shipped_head
from treespec.commands.bench import measured_of, prompt_table, summary_table
from treespec.commands.console import progress_bar
from treespec.cpu import prepack_linears
from treespec.hf.machine import is_quiet
from treespec.lab import smollm2
from treespec.lab.measure.paired import PLAIN, Agreements, Bench, Contestant, Runs, measure_checked, raw_numbers, speeds
from treespec.lab.selftest.agreement import TIE
from treespec.viz import draw_tree, plot_comparison

QUICK = ("chat", "code", "maths", "summary")
NUM_CHAIN, NUM_TREE = 4, 8
PICTURED_PROMPT, PICTURED_NODES = "code", 16


class DemoBench(Bench):
    """The paired bench with the demo's contestants."""

    def __init__(self, model: Any, tokenizer: Any, chosen: list[Prompt], num_new: int) -> None:
        super().__init__(model, {prompt.name: prompts.encode(tokenizer, [prompt]) for prompt in chosen}, num_new)
        self.tokenizer = tokenizer
        self._head: Any = load_drafter(shipped_head(smollm2.NAME), model)
        prepack_linears(self._head.head)

    def drafters(self) -> list[Any]:
        """The head, and two fresh lookups that know what the model wrote by itself, and nothing of the prompts."""
        return [self._head, *WarmStart.shipped(smollm2.NAME).drafters()]

    def contestants(self) -> list[Contestant]:
        """Plain decoding first and the tree last."""
        shapes: dict[str, Any] = {f"chain of {NUM_CHAIN}": Chain(NUM_CHAIN), f"tree of {NUM_TREE} nodes": NUM_TREE}
        return [Contestant(PLAIN, dict), Contestant("prompt lookup", lambda: {"prompt_lookup_num_tokens": 10})] + [
            Contestant(name, lambda tree=tree: {"custom_generate": TreeSpeculation(self.drafters(), tree=tree)})
            for name, tree in shapes.items()
        ]


def main() -> None:
    args = _arguments()
    torch.set_num_threads(args.threads)
    console = Console()
    try:
        model, tokenizer = smollm2.load(say=console.print)
    except smollm2.ModelUnavailableError as error:
        sys.exit(str(error))
    if not is_quiet():
        console.print("[yellow]Other work on this machine will disturb the times.[/]")
    prepack_linears(model)
    bench = DemoBench(model, tokenizer, [p for p in prompts.DEMO if args.full or p.name in QUICK], args.new_tokens)
    data = settings(seed=args.seed, num_rounds=args.rounds, new_tokens=args.new_tokens)
    contestants = bench.contestants()
    with progress_bar(console) as progress:
        task = progress.add_task("measuring", total=bench.num_calls(len(contestants), args.rounds))
        runs, agreements = measure_checked(contestants, bench, args.rounds, partial(progress.advance, task))
    data |= {"load_average_after": load_average(), "runs": raw_numbers(runs, agreements)}
    load = f"load average {data['load_average']} before, {data['load_average_after']} after"
    setting = f"{args.threads} threads, {args.rounds} rounds, {args.new_tokens} new tokens, {load}"
    args.folder.mkdir(parents=True, exist_ok=True)
    picture_step(bench, args.folder / "token_tree.png", console)
    print_numbers(runs, agreements, contestants[-1].name, setting, console)
    title = f"{smollm2.NAME}, greedy, float32, {os.cpu_count()} CPU cores"
    plot_comparison([measured_of(runs, name) for name in runs], args.folder / "comparison.png", title, setting + ".")
    console.print(f"Pictures: [bold]{args.folder}/token_tree.png[/], [bold]{args.folder}/comparison.png[/]")
    write_json(args.folder / "results.json", data)
    if not all(agreement.is_right for rows in agreements.values() for agreement in rows.values()):
        sys.exit("An output differs from plain greedy decoding: this is a bug, please report it.")


def picture_step(bench: DemoBench, path: Path, console: Console) -> None:
    """Show a real step in the terminal and draw it to `path`."""
    speculation = TreeSpeculation(bench.drafters(), tree=PICTURED_NODES, record_steps=True)
    bench.decode(PICTURED_PROMPT, {"custom_generate": speculation})
    index = most_instructive_step(speculation.steps)
    tree, verdict = speculation.steps[index].trees[0], speculation.steps[index].verdicts[0]
    before = [token for earlier in speculation.steps[:index] for token in earlier.emitted[0]]
    prefix = torch.cat([bench.inputs[PICTURED_PROMPT]["input_ids"][0], torch.tensor(before, dtype=torch.int64)])
    probs = node_probs(bench.model, prefix[:-1], tree, verdict)
    title = f"One step of {smollm2.NAME} on “{PICTURED_PROMPT}”: {verdict.num_accepted + 1} tokens in one pass"
    texts = [str(bench.tokenizer.decode([token])) for token in [*tree.tokens.tolist(), verdict.next_token]]
    console.print(f"[bold]{title}[/] (green: accepted; numbers: the target's probabilities)")
    console.print(terminal_tree(tree, verdict, texts, probs))
    draw_tree(tree, verdict, lambda token: str(bench.tokenizer.decode([token])), probs, path, title)


def print_numbers(runs: Runs, agreements: Agreements, tree: str, setting: str, console: Console) -> None:
    console.print(summary_table(runs, agreements, f"{smollm2.NAME}, {len(runs[PLAIN])} prompts"))
    console.print(prompt_table(runs))
    console.print(
        f"Greedy, float32 with packed linear layers, {setting}. ms per token: median over prompts of the median over "
        f"rounds; speed: median of paired ratios. A tie is a top-two gap of plain's logits of at most {TIE:g}.\n"
        f"[bold]{tree}: {median(speeds(runs, tree)):.2f} times as fast as plain generate.[/]"
    )


def _arguments() -> argparse.Namespace:
    options = parser(__doc__ or "")
    options.add_argument("--full", action="store_true", help="nine prompts, 64 tokens, 3 rounds")
    options.add_argument("--new-tokens", type=int, help="default: 32")
    options.add_argument("--rounds", type=int, help="default: 2")
    options.add_argument("--folder", type=Path, default=Path("demo"), help="for the pictures (default: %(default)s)")
    args = options.parse_args()
    args.new_tokens = args.new_tokens or (64 if args.full else 32)
    args.rounds = args.rounds or (3 if args.full else 2)
    return args


if __name__ == "__main__":
    main()
