"""What drafting with a trained head costs: CPU time for random heads of SmolLM2-135M's size.

No target runs: the heads read random states, so only times mean anything. EAGLE-3: "after a step" is a step's first
pass, over three emitted tokens whose states it fuses; "level of n" a pass over n more nodes; "bookkeeping" the same
with a head so small that only the work around it is left. DFlash heads (two layers, blocks of seven tokens)
have one pass per step, over three emitted tokens and the block: their times are of that pass and a whole tree of 16
nodes, best first. Times are the process's CPU time in one thread, so other load disturbs them little.

    python -m benchmarks.heads.draft_head [--repeats 40] [--length 200]
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path

import torch

from benchmarks.common.settings import (
    RESULTS,
    load_average,
    markdown_table,
    parser,
    settings,
    settings_lines,
    write_json,
)
from treespec.heads import DFlash, Eagle3
from treespec.heads.dflash.module import DFlashConfig, DFlashHead
from treespec.heads.eagle3.module import Eagle3Config, Eagle3Head
from treespec.heads.modules.layers import LayerConfig
from treespec.hf.cpu import prepack_linears
from treespec.policies import BestFirst
from treespec.protocols import Frontier, History, Scores, Session, VerifiedStep
from treespec.sampling import NoProcessors
from treespec.tree import TokenTree, TreeBatch, Verdict

VOCAB_SIZE, HIDDEN_SIZE, LAYERS = 49152, 576, (2, 15, 27)
SMOLLM2 = LayerConfig(HIDDEN_SIZE, 1536, 9, 3, 64, 1e-5)
SMALL = LayerConfig(16, 16, 9, 3, 4, 1e-5)
LEVELS = (1, 4, 8, 16)
NUM_EMITTED, NUM_NODES = 3, 16
BLOCK_SIZE, MARKOV_RANK = 7, 64


def random_head(layer: LayerConfig, draft_vocab_size: int) -> Eagle3Head:
    """A head with random weights over the first ids of the vocabulary."""
    config = Eagle3Config(layer, VOCAB_SIZE, draft_vocab_size, HIDDEN_SIZE)
    return Eagle3Head(config, torch.randn(VOCAB_SIZE, layer.hidden_size), torch.arange(draft_vocab_size)).eval()


def random_dflash(draft_vocab_size: int, markov_rank: int) -> DFlashHead:
    """A DFlash head of two layers with random weights."""
    config = DFlashConfig(
        layer=replace(SMOLLM2, has_head_norms=True),
        vocab_size=VOCAB_SIZE,
        draft_vocab_size=draft_vocab_size,
        target_hidden_size=HIDDEN_SIZE,
        num_features=len(LAYERS),
        block_size=BLOCK_SIZE,
        mask_token=0,
        has_anchor_output=True,
        markov_rank=markov_rank,
    )
    return DFlashHead(config, torch.randn(VOCAB_SIZE, HIDDEN_SIZE), torch.arange(draft_vocab_size)).eval()


def start(drafter: Eagle3 | DFlash, length: int, is_sampling: bool) -> History:
    """Start a drafter on a prompt of `length` tokens."""
    ids = torch.randint(0, VOCAB_SIZE, (1, length))
    history = History(ids, torch.ones_like(ids, dtype=torch.bool))
    states = {layer: torch.randn(1, length - 1, HIDDEN_SIZE) for layer in LAYERS}
    generator = torch.Generator().manual_seed(0)
    policy, device = BestFirst(NUM_NODES), ids.device
    drafter.start(Session(history, is_sampling, NoProcessors(), generator, device, VOCAB_SIZE, [0], policy, states))
    return history


def step(drafter: Eagle3 | DFlash, history: History) -> None:
    """Update the drafter with some emitted tokens."""
    tokens = torch.randint(0, VOCAB_SIZE, (NUM_EMITTED,)).tolist()
    tree = TreeBatch.from_trees([TokenTree.chain([0, *tokens[:-1]])])
    states = {layer: torch.randn(1, NUM_EMITTED, HIDDEN_SIZE) for layer in LAYERS}
    verdict = Verdict(tuple(range(NUM_EMITTED)), tokens[-1], True)
    history.append(0, tokens)
    drafter.update(VerifiedStep(tree, [verdict], Scores(torch.empty(0), states), [tokens]))


def frontiers(history: History, width: int) -> tuple[Frontier, Frontier]:
    """The root's, and that of `width` random children of it."""
    root, token = torch.zeros(1, 1, dtype=torch.int64), history.last_tokens.unsqueeze(1)
    of_root = Frontier(root - 1, root == 0, token, root)
    tokens = torch.cat([token, torch.randint(0, VOCAB_SIZE, (1, width))], 1)
    ancestors = torch.cat([torch.ones(width, 1, dtype=torch.bool), torch.eye(width, dtype=torch.bool)], 1)
    return of_root, Frontier(
        root.expand(1, width), ancestors.unsqueeze(0), tokens, (torch.arange(width + 1) > 0).long()[None]
    )


def timed(run: Callable[[], object]) -> float:
    """Milliseconds of CPU time."""
    begin = time.process_time()
    run()
    return 1e3 * (time.process_time() - begin)


def measure(head: Eagle3Head, length: int, is_sampling: bool, repeats: int) -> dict[str, float]:
    """Median milliseconds of a step's first pass and of a level, by its width."""
    drafter = Eagle3(head, LAYERS)
    history = start(drafter, length, is_sampling)
    times: dict[str, list[float]] = {}
    for repeat in range(repeats + 1):
        for width in LEVELS:
            if repeat or width > LEVELS[0]:
                step(drafter, history)
            root, below = frontiers(history, width)
            first = timed(lambda root=root: drafter.expand(root))
            level = timed(lambda below=below: drafter.expand(below))
            if repeat:
                times.setdefault("after a step", []).append(first)
                times.setdefault(f"level of {width}", []).append(level)
    return {name: statistics.median(values) for name, values in times.items()}


def measure_dflash(head: DFlashHead, length: int, is_sampling: bool, repeats: int) -> dict[str, float]:
    """Median milliseconds of a whole step, the pass and the tree."""
    drafter = DFlash(head, LAYERS)
    history = start(drafter, length, is_sampling)
    times = []
    for _ in range(repeats + 1):
        times.append(timed(lambda: drafter.propose(BLOCK_SIZE)))
        step(drafter, history)
    return {"step": statistics.median(times[1:])}


def main() -> None:
    args = _arguments()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    data = settings(repeats=args.repeats, length=args.length, seed=args.seed)
    results, dflash = [], []
    cases = [("bookkeeping", SMALL, 64, False)]
    cases += [(f"{size // 1024}k", SMOLLM2, size, packed) for packed in (False, True) for size in args.sizes]
    for name, layer, size, is_packed in cases:
        head = random_head(layer, size)
        with prepack_linears(head) if is_packed else contextlib.nullcontext():
            for is_sampling in (False, True):
                found = measure(head, args.length, is_sampling, args.repeats)
                results.append({"head": name, "packed": is_packed, "sampling": is_sampling, **found})
    for size, rank, is_packed in product(args.sizes, (0, MARKOV_RANK), (False, True)):
        head = random_dflash(size, rank)
        with prepack_linears(head) if is_packed else contextlib.nullcontext():
            for is_sampling in (False, True):
                found = measure_dflash(head, args.length, is_sampling, args.repeats)
                shape = {"head": f"{size // 1024}k", "rank": rank}
                dflash.append(shape | {"packed": is_packed, "sampling": is_sampling, **found})
    data |= {"results": results, "dflash": dflash, "load_average_after": load_average()}
    write_json(args.output, data)
    table = report(data)
    args.output.with_suffix(".md").write_text(table)
    print(table)


def report(data: dict) -> str:
    """The result file for people."""
    columns = ["after a step", *(f"level of {width}" for width in LEVELS)]
    rows = [
        [
            result["head"],
            "packed" if result["packed"] else "plain",
            "distributions" if result["sampling"] else "candidates",
            *(f"{result[column]:.2f}" for column in columns),
        ]
        for result in data["results"]
    ]
    cells = {}
    for found in data["dflash"]:
        columns_of = cells.setdefault((found["head"], found["rank"], found["packed"]), {})
        columns_of[found["sampling"]] = f"{found['step']:.2f}"
    dflash_rows = [
        [head, str(rank or "none"), "packed" if is_packed else "plain", times[False], times[True]]
        for (head, rank, is_packed), times in cells.items()
    ]
    return (
        "# CPU time of draft heads of SmolLM2-135M's size\n\n## EAGLE-3, ms per pass\n\n"
        f"Text of {data['length']} tokens and more, medians of {data['repeats']}, one thread; head: the draft "
        "vocabulary, or `bookkeeping` for a head of next to no weights; packed: "
        "`treespec.hf.cpu.prepack_linears(drafter.head)`; distributions: what sampled children are drawn from, over "
        f"{VOCAB_SIZE} tokens.\n\n"
        + markdown_table(["head", "weights", "gives", *columns], rows)
        + f"\n## DFlash, two layers, blocks of {BLOCK_SIZE}: ms per step\n\nThe only pass of a step and a tree "
        f"of {NUM_NODES} nodes, best first, of selected or sampled children.\n\n"
        + markdown_table(["head", "Markov rank", "weights", "selected", "sampled"], dflash_rows)
        + f"\nLoad average {data['load_average']} before, {data['load_average_after']} after. {settings_lines(data)}\n"
    )


def _arguments() -> argparse.Namespace:
    options = parser(__doc__ or "", threads=1)
    options.add_argument("--repeats", type=int, default=40)
    options.add_argument("--length", type=int, default=200)
    options.add_argument("--sizes", type=int, nargs="+", default=[4096, 8192, 16384])
    options.add_argument("--output", type=Path, default=RESULTS / "heads" / "draft_head.json")
    return options.parse_args()


if __name__ == "__main__":
    main()
