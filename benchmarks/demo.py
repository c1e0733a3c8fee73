"""The demo: SmolLM2-135M on nine prompts of different kinds, plain, by prompt lookup, by chains and by trees.

All contestants share the model, its packed linear layers, threads, arguments and stopping criteria. Rounds are paired
and interleaved: each round decodes every prompt once with every contestant, in rotating order. Drafts come from the
head that ships for the model (`treespec train`), merged with token recycling and suffix lookup; in every round these
two start anew from text that the model wrote by itself (`treespec warm-up`), and learn over the round's prompts. No
prompt of the demo took part in either. Best chain and best tree are the fastest of a few sizes on the first prompts.
Pictures go to demo/.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor

from benchmarks.common import prompts, smollm2
from benchmarks.common.progress import progress_bar
from benchmarks.common.reference import TIE, Agreement, Plain, compare, plain_greedy
from benchmarks.common.settings import load_average, parser, settings, write_json
from treespec import Chain, TreeSpeculation, WarmStart, load_drafter, shipped_head
from treespec.engine.stats import StepRecord
from treespec.hf.cpu import prepack_linears
from treespec.viz import Measured, draw_tree, plot_comparison

CHAINS, TREES, NUM_TRIAL_PROMPTS = (4, 10), (8, 16, 32), 3
PICTURED_PROMPT, PICTURED_NODES = "code", 16


@dataclass(frozen=True)
class Contestant:
    """A way of decoding: `options()` gives the arguments of `generate` that set it apart, anew for every round."""

    name: str
    options: Callable[[], dict[str, Any]]


@dataclass
class Run:
    """One decoded prompt."""

    tokens: list[int]
    seconds: float
    num_passes: int

    @property
    def ms_per_token(self) -> float:
        return 1e3 * self.seconds / len(self.tokens)

    @property
    def tokens_per_pass(self) -> float:
        return len(self.tokens) / self.num_passes


@dataclass
class Bench:
    """The model, the prompts and what every contestant gets alike."""

    model: Any
    tokenizer: Any
    num_new: int
    num_passes: int = 0
    inputs: dict[str, dict[str, Tensor]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._head = load_drafter(shipped_head(smollm2.NAME), self.model)
        prepack_linears(self._head.head)
        self.inputs = {prompt.name: prompts.encode(self.tokenizer, [prompt]) for prompt in prompts.DEMO}
        self.model.register_forward_pre_hook(self._count)

    def _count(self, *_: Any) -> None:
        self.num_passes += 1

    def decode(self, prompt: str, options: dict[str, Any]) -> Run:
        """Decode greedily and time it; passes of the target are counted, the prompt's included."""
        inputs, before, start = self.inputs[prompt], self.num_passes, time.perf_counter()
        out = self.model.generate(**inputs, max_new_tokens=self.num_new, do_sample=False, **options)
        seconds = time.perf_counter() - start
        return Run(out[0, inputs["input_ids"].shape[1] :].tolist(), seconds, self.num_passes - before)

    def drafters(self) -> list[Any]:
        """The head, and two fresh ones that know what the model wrote by itself, and nothing of the prompts."""
        return [self._head, *WarmStart.shipped(smollm2.NAME).drafters()]


def main() -> None:
    args = _arguments()
    torch.set_num_threads(args.threads)
    console = Console()
    try:
        model, tokenizer = smollm2.load(say=console.print)
    except smollm2.ModelUnavailableError as error:
        sys.exit(str(error))
    warn_of_load(console)
    prepack_linears(model)
    bench = Bench(model, tokenizer, args.new_tokens)
    with progress_bar(console) as progress:
        plains = references(bench, progress)
        chain = fastest([chain_of(bench, k) for k in CHAINS], bench, progress, "choosing a chain")
        tree = fastest([tree_of(bench, n) for n in TREES], bench, progress, "choosing a tree")
        contestants = [PLAIN, LOOKUP, chain, tree]
        load_before = load_average()
        runs = measure(contestants, bench, args.rounds, progress)
    agreements = {c.name: judge(bench, plains, runs[c.name]) for c in contestants}
    console.print(summary_table(contestants, runs, agreements))
    console.print(prompt_table(contestants, runs))
    load = f"load average {load_before} before, {load_average()} after"
    setting = f"{args.threads} threads, {args.rounds} rounds, {args.new_tokens} new tokens, {load}"
    console.print(
        f"Greedy, float32 with packed linear layers, {setting}. ms per token: median over prompts of the median over "
        f"rounds; speed: median of paired ratios. A tie is a top-two gap of plain's logits of at most {TIE:g}.\n"
    )
    save_pictures(bench, contestants, runs, setting, args.folder, console)
    save_numbers(runs, agreements, load_before, args)
    if not all(agreement.is_right for rows in agreements.values() for agreement in rows.values()):
        sys.exit("An output differs from plain greedy decoding: this is a bug, please report it.")


def chain_of(bench: Bench, num_drafted: int) -> Contestant:
    def options() -> dict[str, Any]:
        return {"custom_generate": TreeSpeculation(bench.drafters(), tree=Chain(num_drafted))}

    return Contestant(f"treespec, chain of {num_drafted}", options)


def tree_of(bench: Bench, num_nodes: int) -> Contestant:
    def options() -> dict[str, Any]:
        return {"custom_generate": TreeSpeculation(bench.drafters(), tree=num_nodes)}

    return Contestant(f"treespec, tree of {num_nodes} nodes", options)


PLAIN = Contestant("plain generate", dict)
LOOKUP = Contestant("transformers' prompt lookup", lambda: {"prompt_lookup_num_tokens": 10})


def references(bench: Bench, progress: Progress) -> dict[str, Plain]:
    """Plain continuations with their logit gaps; untimed, so they warm the model up as well."""
    task = progress.add_task("plain reference", total=len(bench.inputs))
    plains = {}
    for name, inputs in bench.inputs.items():
        plains[name] = plain_greedy(bench.model, inputs, bench.num_new)
        progress.advance(task)
    return plains


def fastest(candidates: list[Contestant], bench: Bench, progress: Progress, description: str) -> Contestant:
    """The candidate with the lowest time per token over the first prompts."""
    names = list(bench.inputs)[:NUM_TRIAL_PROMPTS]
    task = progress.add_task(description, total=len(candidates) * len(names))
    options = [candidate.options() for candidate in candidates]
    bench.decode(names[0], candidates[0].options())
    times = [0.0] * len(candidates)
    for name in names:
        for index, option in enumerate(options):
            times[index] += bench.decode(name, option).ms_per_token
            progress.advance(task)
    return candidates[times.index(min(times))]


def measure(
    contestants: list[Contestant], bench: Bench, num_rounds: int, progress: Progress
) -> dict[str, dict[str, list[Run]]]:
    """Runs by contestant and prompt, one per round."""
    task = progress.add_task("measuring", total=num_rounds * len(bench.inputs) * len(contestants))
    runs: dict[str, dict[str, list[Run]]] = {c.name: {name: [] for name in bench.inputs} for c in contestants}
    for contestant in contestants:
        bench.decode(next(iter(bench.inputs)), contestant.options())
    for round_number in range(num_rounds):
        options = [contestant.options() for contestant in contestants]
        for number, name in enumerate(bench.inputs):
            for turn in range(len(contestants)):
                index = (turn + number + round_number) % len(contestants)
                runs[contestants[index].name][name].append(bench.decode(name, options[index]))
                progress.advance(task)
    return runs


def judge(bench: Bench, plains: dict[str, Plain], runs: dict[str, list[Run]]) -> dict[str, Agreement]:
    """By prompt: the agreement with plain decoding, the worst over the rounds."""
    agreements = {}
    for name, rounds in runs.items():
        ids = bench.inputs[name]["input_ids"][0]
        judged = [compare(bench.model, ids, plains[name], run.tokens) for run in rounds]
        agreements[name] = min(judged, key=lambda agreement: (agreement.is_right, agreement.is_identical))
    return agreements


def summary_table(
    contestants: list[Contestant],
    runs: dict[str, dict[str, list[Run]]],
    agreements: dict[str, dict[str, Agreement]],
) -> Table:
    table = Table(title=f"{smollm2.NAME}, {len(prompts.DEMO)} prompts", title_justify="left")
    for name in ("", "ms per token", "speed", "tokens per target pass", "outputs identical to plain"):
        table.add_column(name, justify="left" if not name else "right")
    for contestant in contestants:
        mine = runs[contestant.name]
        table.add_row(
            contestant.name,
            f"{median(ms_per_token(rounds) for rounds in mine.values()):.1f}",
            f"{median(speeds(runs, contestant.name)):.2f}×",
            f"{median(tokens_per_pass(rounds) for rounds in mine.values()):.2f}",
            verdict(list(agreements[contestant.name].values())),
        )
    return table


def prompt_table(contestants: list[Contestant], runs: dict[str, dict[str, list[Run]]]) -> Table:
    table = Table(title="ms per token by prompt", title_justify="left")
    table.add_column("")
    for contestant in contestants:
        table.add_column(contestant.name, justify="right")
    for name in runs[PLAIN.name]:
        table.add_row(name, *(f"{ms_per_token(runs[c.name][name]):.1f}" for c in contestants))
    return table


def ms_per_token(rounds: list[Run]) -> float:
    return median(run.ms_per_token for run in rounds)


def tokens_per_pass(rounds: list[Run]) -> float:
    return median(run.tokens_per_pass for run in rounds)


def speeds(runs: dict[str, dict[str, list[Run]]], name: str) -> list[float]:
    """By prompt, how many times faster than plain: the median of the ratios round by round."""
    pairs = [zip(runs[PLAIN.name][prompt], rounds, strict=True) for prompt, rounds in runs[name].items()]
    return [median(plain.ms_per_token / mine.ms_per_token for plain, mine in rounds) for rounds in pairs]


def verdict(agreements: list[Agreement]) -> str:
    same, ties = sum(a.is_identical for a in agreements), sum(a.is_excused for a in agreements)
    wrong = len(agreements) - same - ties
    parts = [f"{same} of {len(agreements)}", f"{ties} part at a tie" if ties else "", f"{wrong} WRONG" if wrong else ""]
    return ", ".join(part for part in parts if part)


def save_pictures(
    bench: Bench,
    contestants: list[Contestant],
    runs: dict[str, dict[str, list[Run]]],
    setting: str,
    folder: Path,
    console: Console,
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tree_path, comparison_path = folder / "token_tree.png", folder / "comparison.png"
    picture_step(bench, tree_path)
    measured = [measured_of(runs, c.name) for c in contestants]
    plot_comparison(measured, comparison_path, f"{smollm2.NAME}, greedy, float32, {_cores()} CPU cores", setting + ".")
    console.print(f"A token tree with its accepted path and the target's probabilities: [bold]{tree_path}[/]")
    console.print(f"The comparison: [bold]{comparison_path}[/]")


def measured_of(runs: dict[str, dict[str, list[Run]]], name: str) -> Measured:
    """A contestant's prompts for the picture."""
    mine = runs[name].values()
    return Measured(name, [ms_per_token(r) for r in mine], [tokens_per_pass(r) for r in mine], speeds(runs, name))


def save_numbers(
    runs: dict[str, dict[str, list[Run]]],
    agreements: dict[str, dict[str, Agreement]],
    load_before: float,
    args: argparse.Namespace,
) -> None:
    """Every run's time, length and passes, for who wants to reckon again."""
    raw = {
        name: {
            prompt: {
                "seconds": [run.seconds for run in rounds],
                "num_tokens": len(rounds[0].tokens),
                "num_passes": [run.num_passes for run in rounds],
                **vars(agreements[name][prompt]),
            }
            for prompt, rounds in mine.items()
        }
        for name, mine in runs.items()
    }
    data = settings(seed=args.seed, num_rounds=args.rounds, new_tokens=args.new_tokens, load_average_before=load_before)
    write_json(args.folder / "results.json", data | {"runs": raw})


def picture_step(bench: Bench, path: Path) -> None:
    """Draw the real step that accepted most in the later half of a text, with the target's probabilities."""
    speculation = TreeSpeculation(bench.drafters(), tree=PICTURED_NODES, record_steps=True)
    bench.decode(PICTURED_PROMPT, {"custom_generate": speculation})
    steps = speculation.steps
    eligible = [i for i, step in enumerate(steps) if not step.trees[0].is_chain and i >= len(steps) // 3]
    if not eligible:
        eligible = list(range(len(steps)))
    index = max(eligible, key=lambda i: (_num_branch_tokens(steps[i]), steps[i].verdicts[0].num_accepted))
    step, decode = steps[index], bench.tokenizer.decode
    tree, chosen = step.trees[0], step.verdicts[0]
    before = [token for earlier in steps[:index] for token in earlier.emitted[0]]
    prefix = torch.cat([bench.inputs[PICTURED_PROMPT]["input_ids"][0], torch.tensor(before, dtype=torch.int64)])
    probs = node_probs(bench.model, prefix[:-1], tree, chosen.path[-1], chosen.next_token)
    title = f"One step of {smollm2.NAME} on “{PICTURED_PROMPT}”: {chosen.num_accepted + 1} tokens in one pass"
    draw_tree(tree, chosen, lambda token: str(decode([token])), probs, path, title)


def _num_branch_tokens(step: StepRecord) -> int:
    """Accepted tokens that were not first children: what a chain would have missed."""
    tree = step.trees[0]
    return sum(tree.children(tree.parent_list[i])[0] != i for i in step.verdicts[0].path[1:])


@torch.no_grad()
def node_probs(model: Any, prefix: Tensor, tree: Any, last: int, next_token: int) -> list[float]:
    """The target's probability of every node's token after its path, from plain passes, and the next token's.

    `prefix` int64 [P] are the tokens before the root.
    """
    probs = [1.0] * (tree.num_nodes + 1)
    for leaf_path in tree.leaf_paths():
        ids = torch.cat([prefix, tree.tokens[list(leaf_path)]])
        distributions = model(ids[None], logits_to_keep=len(leaf_path)).logits[0].softmax(-1)
        for depth, node in enumerate(leaf_path):
            if node == last:
                probs[tree.num_nodes] = float(distributions[depth, next_token])
            if depth:
                probs[node] = float(distributions[depth - 1, tree.token(node)])
    return probs


def warn_of_load(console: Console) -> None:
    if load_average() > 0.5 * _cores():
        console.print(f"[yellow]Load average {load_average()}: other work on this machine will disturb the times.[/]")


def _cores() -> int:
    return os.cpu_count() or 1


def _arguments() -> argparse.Namespace:
    options = parser(__doc__ or "")
    options.add_argument("--new-tokens", type=int, default=64)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--folder", type=Path, default=Path("demo"), help="for the pictures (default: %(default)s)")
    return options.parse_args()


if __name__ == "__main__":
    main()
