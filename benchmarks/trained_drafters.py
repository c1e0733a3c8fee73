"""Tokens per pass of trained drafters' files side by side, on prompts that none was trained on.

Chains and best-first trees at temperatures 0 and 1, whole calls with SmolLM2-135M-Instruct. Tokens per pass do not
depend on the machine; milliseconds do, and on its load: `benchmarks.peers` measures speeds. Prompts are HumanEval's and
GSM8K's, with some of a file's, or those that `treespec adapt` holds out of a file. Drafters may be measured one by one:
what the output file has of the same prompts stays. Of greedy trees it keeps what `sharing` makes of them.

    python -m benchmarks.trained_drafters head=shipped mtp=runs/mtp/drafter
    python -m benchmarks.trained_drafters head=shipped adapted=adapted/drafter --adapted-to benchmarks/common/sql.jsonl
"""

import json
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import torch
from rich.progress import track

from benchmarks.common.prompts import QUESTIONS, Prompt, encode, held_out
from benchmarks.common.settings import RESULTS, SAMPLING, load_average, markdown_table, parser, publish, settings
from treespec import BestFirst, Chain, TreeSpeculation, load_drafter, shipped_head
from treespec.cpu import prepack_linears
from treespec.engine.observer import Observer, VerifiedTrees
from treespec.hf.loading.mtp import load_mtp
from treespec.lab import smollm2
from treespec.policies.calibration import Calibration
from treespec.policies.control.acceptance import MEMORY, PRIOR_TRIALS, DraftedTree
from treespec.protocols import TreePolicy
from treespec.training.adapt import split_prompts
from treespec.training.text.chat import read_prompts

LEAST_VALUES = (0.0, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


class Values(Observer):
    """Keeps of every tree its nodes' values, as the control estimates them at that time, and those of accepted ones."""

    def __init__(self) -> None:
        self.trees: list[tuple[list[float], list[float]]] = []
        self._known = Calibration(PRIOR_TRIALS, MEMORY)

    def on_verified(self, step: VerifiedTrees) -> None:
        for tree, verdict in zip(step.probs.trees.host_trees(), step.verdicts, strict=True):
            drafted, path = DraftedTree(tree, self._known, is_drawn=False), verdict.path[1:]
            if drafted.order:
                self.trees.append((drafted.probs[1:], [drafted.probs[node] for node in path]))
                drafted.learn(self._known, [*(tree.tokens[node] for node in path), verdict.next_token])


def sharing(trees: Sequence[tuple[list[float], list[float]]]) -> dict[str, dict[str, float]]:
    """By least value, means over trees: nodes that stay, their deviation, and accepted ones, expected and counted.

    Values never rise along a path, so a greedy tree of the nodes above a value accepts the accepted path's nodes above
    it. Only where the next step begins would differ; steps are taken for a stationary sample.
    """
    found = {}
    for least in LEAST_VALUES:
        kept, accepted = (
            [[value for value in values if value >= least] for values in part] for part in zip(*trees, strict=True)
        )
        sizes = [len(values) for values in kept]
        found[str(least)] = {
            "nodes": fmean(sizes),
            "deviation": pstdev(sizes),
            "expected": fmean(map(sum, kept)),
            "accepted": fmean(map(len, accepted)),
        }
    return found


def load(name: str, model: Any) -> Any:
    """A folder, "shipped" for the head that ships, or FOLDER:raw for MTP layers read before the last norms."""
    if name == "shipped":
        return load_drafter(shipped_head(smollm2.NAME), model)
    if name.endswith(":raw"):
        return load_mtp(model, name.removesuffix(":raw"), is_target_normed=False, is_own_normed=False)
    return load_drafter(name, model)


def measure(
    args: Any, model: Any, tokenizer: Any, drafter: Any, prompts: list[Prompt], shapes: dict[str, TreePolicy]
) -> dict[str, dict[str, Any]]:
    """By temperature and shape: tokens, passes, levels of all trees, and seconds, over all prompts."""
    found: dict[str, dict[str, Any]] = {}
    for temperature, (shape, policy) in product(args.temperatures, shapes.items()):
        values = Values() if temperature == "T = 0" and shape.startswith("tree") else None
        observers, start = [values] if values else [], time.perf_counter()
        speculation = TreeSpeculation(drafter, tree=policy, seed=0, observers=observers)
        for prompt in prompts:
            inputs = encode(tokenizer, [prompt])
            model.generate(
                **inputs, max_new_tokens=args.new_tokens, custom_generate=speculation, **SAMPLING[temperature]
            )
        stats = speculation.total_stats
        found.setdefault(temperature, {})[shape] = {
            "tokens": stats.num_emitted_tokens,
            "passes": stats.num_drafts,
            "levels": stats.num_drafted_at_depth.total(),
            "seconds": round(time.perf_counter() - start, 1),
        }
        if values is not None:
            without = [([], [])] * (stats.num_drafts - len(values.trees))  # No room for a draft.
            found[temperature][shape]["sharing"] = sharing(values.trees + without)
    return found


def report(data: dict[str, Any]) -> str:
    """Markdown: tokens per pass by drafter."""
    drafters = data["drafters"]
    columns = dict.fromkeys((t, shape) for found in drafters.values() for t in found for shape in found[t])
    rows = []
    for name, found in drafters.items():
        cells = [found.get(temperature, {}).get(shape) for temperature, shape in columns]
        rows.append([name, *("" if cell is None else f"{cell['tokens'] / cell['passes']:.2f}" for cell in cells)])
    table = markdown_table(["tokens per pass", *(f"{shape}, {temperature}" for temperature, shape in columns)], rows)
    count = f"{len(data['prompts'])} held-out prompts, {data['new_tokens']} tokens each at most.\n"
    return f"# Trained drafters side by side\n\n{count}\n{table}"


def main() -> None:
    options = parser(__doc__ or "", threads=1)
    options.add_argument("drafters", nargs="+", metavar="NAME=FOLDER", help="FOLDER, shipped, or FOLDER:raw")
    options.add_argument("--adapted-to", type=Path, help="the prompts of treespec adapt; its held-out ones are used")
    options.add_argument("--prompts", type=int, default=12)
    options.add_argument("--new-tokens", type=int, default=64)
    options.add_argument("--spec-bench", **QUESTIONS)
    options.add_argument("--temperatures", nargs="+", choices=list(SAMPLING), default=list(SAMPLING))
    options.add_argument("--chains", type=int, nargs="*", default=[4], help="tokens (default: 4)")
    options.add_argument("--trees", type=int, nargs="*", default=[8, 16], help="nodes, the root's too (default: 8 16)")
    options.add_argument("--output", type=Path, default=RESULTS / "training" / "mtp.json")
    args = options.parse_args()
    torch.set_num_threads(args.threads)
    model, tokenizer = smollm2.load()
    prepack_linears(model)
    prompts = held_out(args.spec_bench, args.prompts)
    if args.adapted_to is not None:
        texts = split_prompts(read_prompts(args.adapted_to))[0][: args.prompts]
        prompts = [Prompt(f"held out {number}", text) for number, text in enumerate(texts)]
    shapes: dict[str, TreePolicy] = {f"chain of {n}": Chain(n) for n in args.chains}
    shapes |= {f"tree of {n}": BestFirst(n) for n in args.trees}
    chosen = {"seed": args.seed, "prompts": [prompt.name for prompt in prompts], "new_tokens": args.new_tokens}
    known = json.loads(args.output.read_text()) if args.output.is_file() else {}
    found = known["drafters"] if {name: known.get(name) for name in chosen} == chosen else {}
    for given in track(args.drafters):
        name, _, folder = given.partition("=")
        torch.manual_seed(args.seed)
        found[name] = measure(args, model, tokenizer, load(folder, model), prompts, shapes)
    data = settings(**chosen, target=smollm2.NAME, load_average_after=load_average(), drafters=found)
    publish(args.output, data, report(data))


if __name__ == "__main__":
    main()
