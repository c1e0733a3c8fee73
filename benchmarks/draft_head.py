"""What drafting with an EAGLE-3 head costs: CPU time per pass for a random head of SmolLM2-135M's size.

No target runs: the head reads random states, so only times mean anything. "After a step" is a step's first pass, over
three emitted tokens whose states it fuses; "level of n" a pass over n more nodes; "bookkeeping" the same with a head so
small that only the work around it is left. Times are the process's CPU time in one thread, so other load disturbs them
little.

    python -m benchmarks.draft_head [--repeats 40] [--length 200]
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time
from collections.abc import Callable

import torch

from benchmarks.settings import RESULTS, load_average, markdown_table, parser, settings, settings_lines, write_json
from treespec.drafters import Eagle3
from treespec.heads.eagle3 import Eagle3Config, Eagle3Head
from treespec.heads.layers import LayerConfig
from treespec.hf.cpu import prepack_linears
from treespec.laws import NoProcessors
from treespec.policies import Chain
from treespec.protocols import History, Scores, Session, VerifiedStep
from treespec.tree import TokenTree, TreeBatch, Verdict

VOCAB_SIZE, HIDDEN_SIZE, LAYERS = 49152, 576, (2, 15, 27)
SMOLLM2 = LayerConfig(HIDDEN_SIZE, 1536, 9, 3, 64, 1e-5)
SMALL = LayerConfig(16, 16, 9, 3, 4, 1e-5)
LEVELS = (1, 4, 8, 16)
NUM_EMITTED = 3


def random_head(layer: LayerConfig, draft_vocab_size: int) -> Eagle3Head:
    """A head with random weights over the first ids of the vocabulary."""
    config = Eagle3Config(layer, VOCAB_SIZE, draft_vocab_size, HIDDEN_SIZE)
    return Eagle3Head(config, torch.randn(VOCAB_SIZE, layer.hidden_size), torch.arange(draft_vocab_size)).eval()


def start(head: Eagle3Head, length: int, is_sampling: bool) -> tuple[Eagle3, History]:
    """A drafter that has a prompt of `length` tokens before it."""
    ids = torch.randint(0, VOCAB_SIZE, (1, length))
    history = History(ids, torch.ones_like(ids, dtype=torch.bool))
    states = {layer: torch.randn(1, length - 1, HIDDEN_SIZE) for layer in LAYERS}
    generator = torch.Generator().manual_seed(0)
    session = Session(history, is_sampling, NoProcessors(), generator, ids.device, VOCAB_SIZE, [0], Chain(16), states)
    drafter = Eagle3(head, LAYERS)
    drafter.start(session)
    return drafter, history


def step(drafter: Eagle3, history: History) -> None:
    """Tell the drafter of some emitted tokens."""
    tokens = torch.randint(0, VOCAB_SIZE, (NUM_EMITTED,)).tolist()
    tree = TreeBatch.from_trees([TokenTree.chain([0, *tokens[:-1]])])
    states = {layer: torch.randn(1, NUM_EMITTED, HIDDEN_SIZE) for layer in LAYERS}
    verdict = Verdict(tuple(range(NUM_EMITTED)), tokens[-1], True)
    history.append(0, tokens)
    drafter.commit(VerifiedStep(tree, [verdict], Scores(torch.empty(0), states), [tokens]))


def timed(run: Callable[[], object]) -> float:
    """Milliseconds of CPU time."""
    begin = time.process_time()
    run()
    return 1e3 * (time.process_time() - begin)


def measure(head: Eagle3Head, length: int, is_sampling: bool, repeats: int) -> dict[str, float]:
    """Median milliseconds of a step's first pass and of a level, by its width."""
    drafter, history = start(head, length, is_sampling)
    times: dict[str, list[float]] = {}
    for repeat in range(repeats + 1):
        for width in LEVELS:
            if repeat or width > LEVELS[0]:
                step(drafter, history)
            root, none = history.last_tokens.unsqueeze(1), torch.full((1, 1), -1)
            first = timed(lambda root=root, none=none: drafter.expand(root, none))
            tokens, parents = torch.randint(0, VOCAB_SIZE, (1, width)), torch.zeros(1, width, dtype=torch.int64)
            level = timed(lambda tokens=tokens, parents=parents: drafter.expand(tokens, parents))
            if repeat:
                times.setdefault("after a step", []).append(first)
                times.setdefault(f"level of {width}", []).append(level)
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    args = _arguments()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    data = settings(repeats=args.repeats, length=args.length, seed=args.seed)
    results = []
    cases = [("bookkeeping", SMALL, 64, False)]
    cases += [(f"{size // 1024}k", SMOLLM2, size, packed) for packed in (False, True) for size in args.sizes]
    for name, layer, size, is_packed in cases:
        head = random_head(layer, size)
        with prepack_linears(head) if is_packed else contextlib.nullcontext():
            for is_sampling in (False, True):
                found = measure(head, args.length, is_sampling, args.repeats)
                results.append({"head": name, "packed": is_packed, "sampling": is_sampling, **found})
    data |= {"results": results, "load_average_after": load_average()}
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
            "laws" if result["sampling"] else "candidates",
            *(f"{result[column]:.2f}" for column in columns),
        ]
        for result in data["results"]
    ]
    return (
        "# CPU time of an EAGLE-3 head of SmolLM2-135M's size, ms per pass\n\n"
        f"Text of {data['length']} tokens and more, medians of {data['repeats']}, one thread; head: the draft "
        "vocabulary, or `bookkeeping` for a head of next to no weights; packed: "
        "`treespec.hf.cpu.prepack_linears(drafter.head)`; laws: what sampled children are drawn from, over "
        f"{VOCAB_SIZE} tokens.\n\n"
        + markdown_table(["head", "weights", "gives", *columns], rows)
        + f"\nLoad average {data['load_average']} before, {data['load_average_after']} after. {settings_lines(data)}\n"
    )


def _arguments() -> argparse.Namespace:
    options = parser(__doc__ or "", threads=1)
    options.add_argument("--repeats", type=int, default=40)
    options.add_argument("--length", type=int, default=200)
    options.add_argument("--sizes", type=int, nargs="+", default=[4096, 8192, 16384])
    options.add_argument("--output", type=type(RESULTS), default=RESULTS / "draft_head.json")
    return options.parse_args()


if __name__ == "__main__":
    main()
