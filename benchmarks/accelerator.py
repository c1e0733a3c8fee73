"""An accelerator: passes of a model with eight billion random weights over n nodes, and whole calls by acceptance.

The model has Llama-3.1-8B's sizes and random weights: times are those of the real one, its text is not. Its head makes
every token follow from the one before it by a wide margin, so that rounding decides nothing. The drafter knows the
text, and is right at every position with a given probability, first choice or second; a level costs it one product with
a head of 32,000 rows.

    python -m benchmarks.accelerator --output benchmarks/results/accelerator.json
"""

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.common.drafters import MadeUp
from benchmarks.common.settings import RESULTS, markdown_table, parser, publish, settings
from treespec import Chain, Control, TreeSpeculation
from treespec.hf.models.compiled_target import compiled_scorer
from treespec.hf.models.make_scorer import make_scorer
from treespec.hf.models.measuring import time_pass
from treespec.protocols import Frontier, Proposal

SIZES: dict[str, dict[str, Any]] = {
    "8B": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32}
    | {"num_key_value_heads": 8, "vocab_size": 128256},
    "tiny": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    | {"num_key_value_heads": 2, "vocab_size": 512},
}
NODES = (1, 2, 4, 8, 16, 32, 64)
PLAIN = "plain generate"
COMPILERS: dict[str, dict[str, Any]] = {
    "cudagraphs": {"backend": "cudagraphs"},
    "inductor": {"mode": "reduce-overhead"},
}
"""Both replay CUDA graphs; the first of the kernels as they are, in seconds; the second of fused ones, in a minute."""
COMPILED_NODES = (1, 8, 16, 32)
TREES: dict[str, Any] = {
    "no drafts": lambda: Control(max_nodes=1),
    "chain of 4": lambda: Chain(4),
    "tree of 8": lambda: 8,
    "tree of 16": lambda: 16,
    "auto": lambda: "auto",
}


class KnownText(MadeUp):
    """Proposes the tokens of known texts [B, L], first choice right with probability `first`, second with `second`."""

    def __init__(self, texts: Tensor, first: float, second: float, hidden_size: int, head: nn.Linear) -> None:
        self._texts, self._head, self.num_weights = texts.cpu(), head, head.weight.numel()
        self._state = torch.zeros(1, hidden_size, dtype=head.weight.dtype, device=head.weight.device)
        luck = torch.rand(texts.shape, generator=torch.Generator().manual_seed(0))
        self._rank = torch.where(luck < first, 0, torch.where(luck < first + second, 1, 2))
        self._probs = torch.tensor([first, second, 0.02])

    def expand(self, frontier: Frontier) -> Proposal:
        self._head(self._state).sum().item()  # A draft pass, and the wait for its result.
        lengths = torch.tensor(self._session.history.lengths).unsqueeze(1)
        at = (lengths + frontier.depths).clamp(max=self._texts.shape[1] - 1)
        right, rank = (known.gather(1, at).unsqueeze(-1) for known in (self._texts, self._rank))
        vocab_size = self._session.vocab_size
        tokens = (right + torch.arange(1, 4)) % vocab_size
        tokens = torch.where(torch.arange(3) == rank, right, tokens)
        return Proposal(self._probs.expand(tokens.shape), tokens)


def timed(device: str, run: Any) -> tuple[Any, float]:
    """Return a call's result, and the milliseconds of the whole call, not per token, until the device is done."""
    wait = torch.cuda.synchronize if device == "cuda" else (lambda: None)
    wait()
    start = time.perf_counter()
    found = run()
    wait()
    return found, 1e3 * (time.perf_counter() - start)


@torch.no_grad()
def passes(model: Any, device: str, context: int, rounds: int, compiler: str | None = None) -> dict[str, float]:
    """Median milliseconds of a pass over n nodes behind `context` tokens."""
    scorer = make_scorer(model) if compiler is None else compiled_scorer(model, 2 * context, COMPILERS[compiler])
    found = {n: list[float]() for n in (NODES if compiler is None else COMPILED_NODES)}
    ids = torch.randint(3, 500, (1, context), device=device)
    scorer.prefill(ids, torch.ones_like(ids, dtype=torch.bool))
    for _ in range(rounds + 2):
        for n, times in found.items():
            times.append(1e3 * time_pass(scorer, n))
    return {str(n): median(times[2:]) for n, times in found.items()}


def calls(
    model: Any,
    device: str,
    batch: int,
    args: Any,
    firsts: Sequence[float] = (0.0, 0.5, 0.8),
    compiler: str | None = None,
) -> dict[str, Any]:
    """Milliseconds per token of a row and tokens per pass, by way and by how often the first choice is right."""
    inputs = {"input_ids": torch.randint(3, 500, (batch, 256), device=device)}
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    options = {"max_new_tokens": args.new_tokens, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    text = model.generate(**inputs, **options)
    # With a static cache transformers compiles plain decoding, too.
    plain = {} if compiler is None else {"cache_implementation": "static"}
    compiled = COMPILERS.get(compiler or "", False)
    head = nn.Linear(model.config.hidden_size, 32000, bias=False, dtype=model.dtype, device=device)
    found: dict[str, Any] = {}
    for first in firsts:
        drafter = KnownText(text, first, 0.4 * (1 - first) * (first > 0), model.config.hidden_size, head)
        ways = {name: TreeSpeculation(drafter, tree=TREES[name](), compile=compiled) for name in args.ways}
        extra: dict[str, dict[str, Any]] = {PLAIN: plain} | {name: {"custom_generate": it} for name, it in ways.items()}
        times: dict[str, list[float]] = {name: [] for name in extra}
        shared = {}
        for number in range(args.rounds + 1):
            for name, own in extra.items():
                out, ms = timed(device, partial(model.generate, **inputs, **options, **own))
                shared[name] = float((out == text)[:, -args.new_tokens :].float().mean())
                if number:  # The first round warms up.
                    times[name].append(ms / args.new_tokens)
        found[str(first)] = {
            name: {
                "ms": median(times[name]),
                "tokens_per_pass": ways[name].stats.mean_acceptance_length if name in ways else 1.0,
                "as_plain": shared[name],
            }
            for name in extra
        }
    return found


def report(data: dict[str, Any]) -> str:
    lines = [f"# On {data['device_name']}\n", f"{data['size']}, {data['dtype']}, torch {torch.__version__}.\n"]
    times = data["passes"].items()
    rows = [[name, *(f"{by[str(n)]:.2f}" if str(n) in by else "" for n in NODES)] for name, by in times]
    lines.append(markdown_table(["ms of a pass, by nodes", *map(str, NODES)], rows))
    header = ["", "ms per token", "times plain", "tokens per pass", "tokens as plain"]
    for title, found in data["calls"].items():
        runs = ((first, name, by[PLAIN], run) for first, by in found.items() for name, run in by.items())
        lines.append(markdown_table([title, *header], [[first, name, *_cells(*ms)] for first, name, *ms in runs]))
    return "\n".join(lines)


def _cells(plain: dict[str, float], run: dict[str, float]) -> list[str]:
    ms, *others = run.values()
    return [f"{number:.2f}" for number in (ms, plain["ms"] / ms, *others)]


def main() -> None:
    options = parser(__doc__ or "", threads=8)
    options.add_argument("--size", choices=SIZES, default="8B")
    options.add_argument("--device", default="cuda")
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--new-tokens", type=int, default=96)
    options.add_argument("--batches", type=int, nargs="*", default=[1, 4, 8])
    options.add_argument("--ways", nargs="*", choices=TREES, default=list(TREES))
    options.add_argument(
        "--compilers", nargs="*", choices=COMPILERS, default=[], help="single texts with CUDA graphs too"
    )
    options.add_argument("--output", type=Path, default=RESULTS / "accelerator.json")
    args = options.parse_args()
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(args.device):
        model: Any = LlamaForCausalLM(LlamaConfig(max_position_embeddings=8192, **SIZES[args.size])).eval()
        embedding = model.get_input_embeddings().weight.data.mul_(2000)  # Then the layers add little.
        model.lm_head.weight.data.copy_(embedding[torch.randperm(len(embedding))])
    torch.set_default_dtype(torch.float32)
    name = torch.cuda.get_device_name() if args.device == "cuda" else args.device
    data = settings(device_name=name, size=args.size, dtype="bfloat16", new_tokens=args.new_tokens)
    data |= {"passes": {}, "calls": {}}

    for context in (512, 4096):
        data["passes"][f"{context} tokens before"] = passes(model, args.device, context, 4 * args.rounds)
    for compiler in args.compilers:
        data["passes"][f"512, {compiler}"] = passes(model, args.device, 512, 4 * args.rounds, compiler)
    for batch in args.batches:
        title = f"batch of {batch}, first choice right"
        data["calls"][title] = calls(model, args.device, batch, args)
        publish(args.output, data, report(data))
    for compiler in args.compilers:
        title = f"single texts, {compiler}, first choice right"
        data["calls"][title] = calls(model, args.device, 1, args, (0.0, 0.5, 0.8), compiler)
        publish(args.output, data, report(data))


if __name__ == "__main__":
    main()
