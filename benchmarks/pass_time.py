"""Milliseconds of one target pass over n nodes of a tree, by context: as transformers runs it, packed, optimised.

Every variant scores the same tree of n nodes behind the same tokens. Rounds are paired and interleaved: each round
times every variant once for every n, so that another process's work falls on all of them. Listed with them are the
machine's limits, measured in the same run: reading the weights once, and the arithmetic of n rows at the rate of
PyTorch's large products.

- plain: transformers' own attention, concatenating cache and linear layers.
- scorer: treespec's attention and cache, plain linear layers.
- packed: the same with `prepack_linears` (float32 only).
- optimised: the same with `treespec.optimize`.
- bfloat16 linears: the same with `treespec.optimize(dtype=torch.bfloat16)` (float32 models only).

Medians, quartiles and all raw times are written to benchmarks/results/pass_time.{json,md}.
"""

import statistics
import time
from contextlib import AbstractContextManager, nullcontext
from timeit import repeat
from typing import Any

import torch
from rich.progress import track
from torch import nn
from transformers import DynamicCache, PreTrainedModel

import treespec
from benchmarks.common.estimates import ratio
from benchmarks.common.settings import RESULTS, load_average, markdown_table, parser, publish, settings
from treespec import tree_attention_mask
from treespec.cpu import prepack_linears
from treespec.hf.attention.folded import FoldedAttention
from treespec.hf.introspect import CACHE_NAME
from treespec.lab import smollm2
from treespec.tree import TokenTree

NUM_NODES = (1, 2, 4, 8, 16, 32)
CONTEXTS = (64, 256, 1024)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
VARIANTS = {
    "float32": ("plain", "scorer", "packed", "optimised", "bfloat16 linears"),
    "bfloat16": ("plain", "scorer", "optimised"),
}
Times = dict[str, dict[int, dict[int, list[float]]]]


def variant(name: str, model: PreTrainedModel) -> AbstractContextManager[Any]:
    """The model as a contestant runs it, inside."""
    if name == "packed":
        return prepack_linears(model)
    if name in ("optimised", "bfloat16 linears"):
        return treespec.optimize(model, dtype=torch.bfloat16 if name == "bfloat16 linears" else None)
    return nullcontext()


@torch.inference_mode()
def measure(model: PreTrainedModel, names: tuple[str, ...], num_rounds: int, generator: torch.Generator) -> Times:
    """Times in ms of every round, by variant, context and number of nodes.

    Its own clock, as the paired runner times whole texts and this one pass at a time, behind a cache that is cut again.
    """
    times: Times = {name: {size: {n: [] for n in NUM_NODES} for size in CONTEXTS} for name in names}
    for context in CONTEXTS:
        prompt = torch.randint(model.config.vocab_size, (1, context), generator=generator)
        passes = {n: tree_pass(n, context, model, generator) for n in NUM_NODES}
        for number in track(range(-1, num_rounds), description=f"{model.dtype}, {context} tokens"):
            for name in names:
                cache = DynamicCache() if name == "plain" else treespec.new_cache(model.config.num_hidden_layers)
                model(prompt, **{CACHE_NAME: cache})
                folding = FoldedAttention(model)
                with variant(name, model):
                    for is_warm, n in [(False, 2), *((number >= 0, n) for n in NUM_NODES)]:
                        start = time.perf_counter()
                        if name == "plain":
                            model(**passes[n], **{CACHE_NAME: cache})
                        else:
                            with folding.running():
                                model(**passes[n], **{CACHE_NAME: cache})
                        elapsed = 1e3 * (time.perf_counter() - start)
                        cache.crop(-n)
                        if is_warm:
                            times[name][context][n].append(elapsed)
    return times


def tree_pass(num_nodes: int, context: int, model: PreTrainedModel, generator: torch.Generator) -> dict[str, Any]:
    """Arguments of a pass over a random tree, every third node a leaf; a single node needs no mask."""
    tokens = torch.randint(model.config.vocab_size, (num_nodes,), generator=generator)
    if num_nodes == 1:
        return {"input_ids": tokens.unsqueeze(0)}
    parents = torch.tensor([-1, *((node * 2) // 3 for node in range(num_nodes - 1))])
    attention = tree_attention_mask(TokenTree(tokens, parents), context, model.config)
    mask = {"attention_mask": attention.mask, "position_ids": attention.position_ids}
    return {"input_ids": tokens.unsqueeze(0), **mask}


def limits(model: PreTrainedModel) -> dict[str, float]:
    """The machine's rates in GB/s and GFLOP/s, and what the model's linear layers have, in GB and GFLOP per row."""
    weights = [m.weight for m in model.modules() if isinstance(m, nn.Linear)]
    large = torch.zeros(1 << 28, dtype=torch.uint8)  # 256 MiB
    copy_to = torch.empty_like(large)
    square = torch.randn(1536, 1536).to(model.dtype)
    copy_seconds, product_seconds = (
        min(repeat(run, number=1, repeat=15)) for run in (lambda: copy_to.copy_(large), lambda: square @ square)
    )
    return {
        "copied_gb_per_s": 2 * large.nbytes / copy_seconds / 1e9,
        "gflop_per_s": 2 * 1536**3 / product_seconds / 1e9,
        "weights_gb": sum(weight.nbytes for weight in weights) / 1e9,
        "gflop_per_row": sum(2 * weight.numel() for weight in weights) / 1e9,
    }


@torch.inference_mode()
def largest_differences(model: PreTrainedModel, names: tuple[str, ...], generator: torch.Generator) -> dict[str, float]:
    """Largest difference of logits from the plain model's, in standard deviations of the logits."""
    ids = torch.randint(model.config.vocab_size, (1, 64), generator=generator)
    plain = model(ids).logits.float()
    found = {}
    for name in names:
        with variant(name, model):
            found[name] = float((model(ids).logits.float() - plain).abs().max() / plain.std())
    return found


def report(data: dict) -> str:
    lines = [
        f"# One pass of {smollm2.NAME} over n nodes\n",
        f"Milliseconds, median (quartiles) of {data['num_rounds']} paired rounds. Load average {data['load_average']} "
        f"before, {data['load_average_after']} after; more than one process's load makes all times longer, ratios less "
        "so. T(16) / T(1) is the median of the rounds' ratios.\n",
    ]
    for dtype, found in data["dtypes"].items():
        rates = found["limits"]
        memory = 1e3 * rates["weights_gb"] / rates["copied_gb_per_s"]
        lines.append(
            f"## {dtype}\n\nLimits of the linear layers: {memory:.1f} ms to read {rates['weights_gb']:.2f} GB at the "
            f"rate of a copy ({rates['copied_gb_per_s']:.1f} GB/s), and "
            f"{1e3 * rates['gflop_per_row'] / rates['gflop_per_s']:.2f} ms of arithmetic per node at the rate of "
            f"PyTorch's large products ({rates['gflop_per_s']:.0f} GFLOP/s, which native ones may exceed). "
            "Largest difference of logits from the plain model's, in standard deviations: "
            + ", ".join(f"{name} {value:.1e}" for name, value in found["logit_differences"].items() if name != "plain")
            + ".\n"
        )
        rows = [
            [size, name, *map(quartiles, by_nodes.values()), f"{ratio(by_nodes[16], by_nodes[1]).value:.2f}"]
            for name, by_context in found["times_ms"].items()
            for size, by_nodes in by_context.items()
        ]
        rows.sort(key=lambda row: int(row[0]))
        header = ["context", "variant", *(f"n = {n}" for n in NUM_NODES), "T(16) / T(1)"]
        lines.append(markdown_table(header, [[str(cell) for cell in row] for row in rows]))
    return "\n".join(lines)


def quartiles(times: list[float]) -> str:
    low, middle, high = statistics.quantiles(times, n=4)
    return f"{middle:.1f} ({low:.1f} to {high:.1f})"


def main() -> None:
    options = parser(__doc__ or "")
    options.add_argument("--rounds", type=int, default=21)
    args = options.parse_args()
    torch.set_num_threads(args.threads)
    data = settings(seed=args.seed, num_rounds=args.rounds, dtypes={})
    model, _ = smollm2.load()
    for name, dtype in DTYPES.items():
        model = model.to(dtype=dtype)  # pyright: ignore[reportCallIssue]
        generator = torch.Generator().manual_seed(args.seed)
        data["dtypes"][name] = {
            "limits": limits(model),
            "logit_differences": largest_differences(model, VARIANTS[name], generator),
            "times_ms": measure(model, VARIANTS[name], args.rounds, generator),
        }
    data["load_average_after"] = load_average()
    publish(RESULTS / "pass_time.json", data, report(data))


if __name__ == "__main__":
    main()
