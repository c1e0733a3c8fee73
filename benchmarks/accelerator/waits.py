"""How often a step waits for the device and what it launches, counted on a pretended accelerator.

    python -m benchmarks.accelerator.waits

A tiny model, a batch of three ragged rows. Kernels of the models' own passes are counted apart, as
treespec cannot change them. What is left is treespec's own share of a step.
"""

from __future__ import annotations

import argparse
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

import treespec
from benchmarks.accelerator.device import DEVICE, PretendAccelerator, to_device
from benchmarks.common.settings import RESULTS, markdown_table, settings, settings_lines, write_json
from treespec import Chain, KAry, SuffixLookup, TokenRecycling, TreeSpeculation

MODEL_PASSES = ("hf/models/base.py",)
"""Lines below which a model runs."""
GREEDY = {"do_sample": False}
SAMPLED = {"do_sample": True, "temperature": 0.9}
PENALTY = {**SAMPLED, "top_p": 0.9, "repetition_penalty": 1.2}
Case = tuple[str, Callable[[Any], TreeSpeculation], dict[str, Any]]


def cases() -> Iterator[Case]:
    """Name, what decodes given a draft model, and further arguments of `generate`."""
    shapes = {"tree of 8": 8, "2 x 2": KAry((2, 2)), "chain of 4": Chain(4)}
    settings = {"greedy": GREEDY, "sampled": SAMPLED, "sampled, top-p and penalty": PENALTY}
    for setting, extra in settings.items():
        for shape, tree in shapes.items():
            yield (
                f"draft model, {shape}, {setting}",
                lambda draft, t=tree: TreeSpeculation(draft, tree=t, seed=0),
                extra,
            )
    lookups = {
        "recycling": lambda: TokenRecycling(),
        "suffix lookup": lambda: SuffixLookup(),
        "both merged": lambda: [TokenRecycling(), SuffixLookup()],
    }
    for name, make in lookups.items():
        for setting in ("greedy", "sampled, top-p and penalty"):
            yield (
                f"{name}, tree of 8, {setting}",
                lambda draft, make=make: TreeSpeculation(make(), tree=8, seed=0),
                settings[setting],
            )


def tiny_models() -> tuple[LlamaForCausalLM, LlamaForCausalLM]:
    """A target of two layers and a noisy copy of it."""
    torch.manual_seed(0)
    sizes: Any = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = LlamaConfig(vocab_size=64, num_key_value_heads=2, initializer_range=0.3, **sizes)
    model, draft = LlamaForCausalLM(config).eval(), LlamaForCausalLM(config).eval()
    draft.load_state_dict({k: v + 0.03 * torch.randn_like(v) for k, v in model.state_dict().items()})
    return model, draft


def prompts() -> tuple[Tensor, Tensor]:
    """int64 [3, 9] and its mask, the second row with left padding."""
    ids, mask = torch.randint(1, 64, (3, 9), generator=torch.Generator().manual_seed(0)), torch.ones(3, 9).long()
    ids[1, :4], mask[1, :4] = 0, 0
    return ids, mask


def count(case: Case, model: Any, draft: Any, device: PretendAccelerator, num_tokens: int) -> dict[str, Any]:
    """Waits and launches per step of one case; models and device as `PretendAccelerator` wants them."""
    name, make, extra = case
    ids, mask = prompts()
    options = {"max_new_tokens": num_tokens, "eos_token_id": None, "pad_token_id": 0, **extra}
    given = {"inputs": ids.to(DEVICE), "attention_mask": mask.to(DEVICE)}
    model.generate(**given, custom_generate=make(draft), **options)  # What happens once per model is not counted.
    speculation = make(draft)
    device.clear()
    output = model.generate(**given, custom_generate=speculation, **options)
    steps = speculation.stats.num_target_passes
    row: dict[str, Any] = {"name": name, "steps": steps, "output": output.inner.tolist()}
    for kind in ("reads", "uploads", "launches"):
        counts: Counter[str] = getattr(device, kind)
        passes = sum(n for line, n in counts.items() if line.startswith(MODEL_PASSES))
        row[kind] = (sum(counts.values()) - passes) / steps
        row[f"{kind} of models"] = passes / steps
        row[f"{kind} by line"] = {line: n / steps for line, n in counts.most_common(12) if n >= steps / 2}
    return row


def main() -> None:
    """Count, print and write the table."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--tokens", type=int, default=24, help="new tokens per row")
    options.add_argument("--folder", type=Path, default=RESULTS / "accelerator")
    args = options.parse_args()
    warnings.simplefilter("ignore")
    model, draft = tiny_models()
    rows = []
    with PretendAccelerator() as device:
        to_device(model)
        to_device(draft)
        for case in cases():
            rows.append(count(case, model, draft, device, args.tokens))
            print(f"{rows[-1]['name']}: {rows[-1]['reads']:.1f} reads, {rows[-1]['uploads']:.1f} uploads, "
                  f"{rows[-1]['launches']:.0f} launches", flush=True)  # fmt: skip
    data = {**settings(treespec=treespec.__version__), "rows": rows}
    write_json(args.folder / "waits.json", data)
    header = ["per step", "reads", "uploads", "launches", "launches of the models"]
    table = [
        [
            r["name"],
            f"{r['reads']:.1f}",
            f"{r['uploads']:.1f}",
            f"{r['launches']:.0f}",
            f"{r['launches of models']:.0f}",
        ]
        for r in rows
    ]
    text = (
        "# Waits and launches per step\n\n"
        "On a pretended accelerator, a batch of three, a model of two layers. Reads and uploads wait for the device;\n"
        "launches are kernels outside the models' own passes.\n\n"
        + markdown_table(header, table)
        + "\n"
        + settings_lines(data)
    )
    (args.folder / "waits.md").write_text(text)


if __name__ == "__main__":
    main()
