"""`speed_up` on ten kinds of models: what it chooses, and whole calls compared with plain `generate` of the same model.

Every kind is loaded twice: one model decodes plainly, the other one is sped up. All prompts are decoded by both in
turn, after one call each that does not count. Random models and the pretended accelerator say nothing about gains, but
whether `speed_up` costs time where nothing can be gained: a kind below 0.97 is marked.

    python -m benchmarks.speed_up_kinds --mtp FOLDER
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

import torch
from transformers import AutoTokenizer

from benchmarks.common.prompts import DEMO, encode
from benchmarks.common.settings import RESULTS, SAMPLING, load_average, markdown_table, parser, publish, settings
from benchmarks.hybrids.models import qwen_with_successors
from benchmarks.peers.contestants import PLAIN
from benchmarks.peers.report import as_plain, ms_per_token, speed, tokens_per_pass
from treespec import optimize
from treespec.hf.loading.models import load_model
from treespec.lab import smollm2
from treespec.lab.measure.paired import Bench, Contestant, in_turn
from treespec.speedup import speed_up

HELPERS = Path(__file__).parents[1] / "tests"
SPED_UP, LEAST = "speed_up", 0.97
Prompts = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Kind:
    """A kind of models.

    Attributes:
        load: makes a new model at every call, the same one.
        prompts: its prompts; None: those of SmolLM2.
        within: what surrounds all calls.
    """

    load: Callable[[], Any]
    prompts: Callable[[], Prompts] | None = None
    within: Callable[[], AbstractContextManager[Any]] = nullcontext


def smollm2_named(name: str | None = None, dtype: torch.dtype = torch.float32) -> Any:
    """SmolLM2; under another name nothing is known of it."""
    model: Any = smollm2.load()[0]
    model.to(dtype)
    if name is not None:
        model.config._name_or_path = name
    return model


def in_8_bits() -> Any:
    model = smollm2_named()
    optimize(model, dtype=torch.int8)
    return model


def with_lora() -> Any:
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    config = LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    return get_peft_model(smollm2_named(), config).eval()  # pyright: ignore[reportArgumentType]


def helper(name: str) -> Any:
    """A module of the tests' helpers: tiny models, and the pretended accelerator."""
    if str(HELPERS) not in sys.path:
        sys.path.insert(0, str(HELPERS))
    return import_module(f"helpers.{name}")


def multimodal() -> Any:
    made = helper("multimodal")
    return made.build(made.BY_NAME["gemma3"])


def tiny() -> Any:
    return helper("tiny").tiny_llama()


def on_accelerator() -> Any:
    model = tiny()
    helper("accelerator.device").to_device(model)
    return model


def random_prompts(device: Any = "cpu") -> Prompts:
    """Ids that every tiny model has; many, since calls of 50 ms differ by several percent."""
    generator = torch.Generator().manual_seed(0)
    ids = [torch.randint(3, 60, (1, 24), generator=generator) for _ in range(20)]
    return {f"random {number}": {"input_ids": one.to(device)} for number, one in enumerate(ids)}


def kinds(mtp: Path | None) -> dict[str, Kind]:
    """By name; without a folder of a checkpoint with an MTP layer that kind is left out."""
    found = {
        "with a head": Kind(smollm2_named),
        "with an MTP layer": Kind(lambda: load_model(str(mtp), dtype=torch.float32).eval()),
        "bare": Kind(lambda: smollm2_named("a-model")),
        "in 8 bits (treespec.optimize)": Kind(in_8_bits),
        "LoRA": Kind(with_lora),
        "bfloat16": Kind(lambda: smollm2_named(dtype=torch.bfloat16)),
        "hybrid, random": Kind(lambda: qwen_with_successors(768, 12, seed=0), random_prompts),
        "multimodal, tiny": Kind(multimodal, random_prompts),
        "tiny": Kind(tiny, random_prompts),
        "pretended accelerator, tiny": Kind(
            on_accelerator,
            lambda: random_prompts(helper("accelerator.device").DEVICE),
            lambda: helper("accelerator.device").PretendAccelerator(),
        ),
    }
    if mtp is None:
        del found["with an MTP layer"]
    return found


def compare(kind: Kind, prompts: Prompts, num_new: int, seed: int) -> dict[str, Any]:
    """The set-up's seconds, `speed_up`'s report, and the runs by temperature, prompt and contestant."""
    with ExitStack() as stack, smollm2.quiet_transformers():
        stack.enter_context(kind.within())
        plain, model = kind.load(), kind.load()
        inputs = prompts if kind.prompts is None else kind.prompts()
        start = time.perf_counter()
        speculation = speed_up(model)
        found: dict[str, Any] = {"set-up": time.perf_counter() - start}
        contestants = [
            Contestant(PLAIN, dict, plain),
            Contestant(SPED_UP, lambda: {"custom_generate": speculation}, model),
        ]
        for name, sampling in SAMPLING.items():
            bench = Bench(model, inputs, num_new, sampling | {"pad_token_id": 0}, seed)
            runs = dict(in_turn(contestants, bench, 1, list(inputs)))
            found[name] = {key: {who: as_plain(run) for who, run in by.items()} for key, by in runs.items()}
            if name == "T = 0":
                found["differing"] = sum(by[PLAIN].tokens != by[SPED_UP].tokens for by in runs.values())
        found["report"] = str(speculation)
        speculation.restore()
    return found


def rows(found: dict[str, dict[str, Any]]) -> Iterator[list[str]]:
    for name, data in found.items():
        texts = [speed(data[key], SPED_UP, PLAIN, is_whole=True) for key in SAMPLING]
        lines = dict(line.split(maxsplit=1) for line in data["report"].splitlines() if not line.startswith(" "))
        yield [
            name,
            lines["drafts"],
            *(text + " **below**" * (float(text.split()[0]) < LEAST) for text in texts),
            *(tokens_per_pass(data[key], SPED_UP) for key in SAMPLING),
            f"{median(ms_per_token(data['T = 0'], PLAIN, is_whole=True)):.1f}",
            str(data["differing"]),
        ]


def report(data: dict[str, Any]) -> str:
    header = ["model", "drafts", "times plain, T = 0", "T = 1", "tokens per pass, T = 0", "T = 1"]
    header += ["plain, ms per token", "greedy texts that differ"]
    lines = [
        "# `speed_up` on ten kinds of models\n",
        f"Whole calls, {data['new_tokens']} new tokens, pairs; medians over prompts, brackets: 95 % intervals. Load "
        f"average {data['load_average']} before, {data['load_average_after']} after.\n",
        markdown_table(header, list(rows(data["found"]))),
    ]
    return "\n".join(lines)


def main() -> None:
    options = parser(__doc__ or "", threads=1)
    options.add_argument(
        "--mtp", type=Path, help="the folder of a checkpoint with an MTP layer and SmolLM2's tokenizer"
    )
    options.add_argument("--prompts", type=int, default=5, help="at most (default: %(default)s)")
    options.add_argument("--new-tokens", type=int, default=32)
    options.add_argument("--kinds", nargs="*", help="names; None: all")
    options.add_argument("--output", type=Path, default=RESULTS / "speed_up_kinds.json")
    args = options.parse_args()
    torch.set_num_threads(args.threads)
    chosen = {name: kind for name, kind in kinds(args.mtp).items() if args.kinds is None or name in args.kinds}
    prompts: Prompts = {}
    if any(kind.prompts is None for kind in chosen.values()):
        tokenizer = AutoTokenizer.from_pretrained(smollm2.converted_folder())
        prompts = {prompt.name: encode(tokenizer, [prompt]) for prompt in DEMO[: args.prompts]}
    data = settings(new_tokens=args.new_tokens) | {"found": {}}
    for name, kind in chosen.items():
        print(name, flush=True)
        data["found"][name] = compare(kind, prompts, args.new_tokens, args.seed)
    data["load_average_after"] = load_average()
    publish(args.output, data, report(data))


if __name__ == "__main__":
    main()
