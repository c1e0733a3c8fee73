"""How often a step waits for the device and what it launches, counted on a pretended accelerator.

A tiny model, a batch of three ragged rows; the prompt's pass is left out. Kernels of the models' own passes are counted
apart, as treespec cannot change them. What is left is treespec's own share of a step.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any
from unittest.mock import patch

import torch
from helpers.accelerator.device import DEVICE, PretendAccelerator, to_device
from helpers.accelerator.heads import head_cases
from helpers.tiny import noisy_copy, padded, prompt, tiny_llama
from torch import Tensor
from transformers import LlamaForCausalLM

from treespec import Chain, KAry, SuffixLookup, TokenRecycling, TreeSpeculation
from treespec.engine import loop
from treespec.policies import TreeBuilder

MODEL_PASSES = (
    "hf/models/base.py",
    "hf/cache/growing.py",
    "hf/attention/folded.py",
    "heads/modules/",
    *(f"heads/{kind}/module.py" for kind in ("dflash", "eagle3", "medusa")),
)
"""Files whose lines run within a model's or a head's pass."""
PROCESSORS = ("hf/generation/processors.py",)
"""Files whose lines run the caller's logits processors: kernels of transformers, over all nodes of a pass at once."""
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
    yield from head_cases({"greedy": GREEDY, "sampled": SAMPLED})


def tiny_models() -> tuple[LlamaForCausalLM, LlamaForCausalLM]:
    """A target of two layers and a noisy copy of it."""
    target = tiny_llama()
    return target, noisy_copy(target, 0.1)


@cache
def models_on(device: torch.device) -> tuple[LlamaForCausalLM, LlamaForCausalLM]:
    """The same two models for all cases, whose self-check then runs once; inside the device's block."""
    model, draft = tiny_models()
    if device == DEVICE:
        to_device(model)
        to_device(draft)
    return model, draft


def prompts() -> tuple[Tensor, Tensor]:
    """int64 [3, 9] and its mask, the second row with left padding."""
    inputs = padded(prompt(3, 9, seed=0), [0, 4, 0])
    return inputs["input_ids"], inputs["attention_mask"]


@contextmanager
def counting_from_the_first_tree(device: PretendAccelerator) -> Iterator[list[int]]:
    """Forget what happens before the first step; yields a list that gets an entry per level of a tree."""
    draft, expand, levels = loop.Run.draft, TreeBuilder.expand, []

    def first(run: Any) -> Any:
        if not run.stats.num_target_passes:
            device.clear()
        return draft(run)

    def counted(builder: Any, nodes: Any) -> Any:
        levels.append(1)
        return expand(builder, nodes)

    with patch.object(loop.Run, "draft", first), patch.object(TreeBuilder, "expand", counted):
        yield levels


def options_of(case: Case, num_tokens: int) -> dict[str, Any]:
    """The arguments of `generate` besides the prompts."""
    return {"max_new_tokens": num_tokens, "eos_token_id": None, "pad_token_id": 0, **case[2]}


def count(case: Case, model: Any, draft: Any, device: PretendAccelerator, num_tokens: int) -> dict[str, Any]:
    """Waits and launches per step of one case, and its output; models and device as `PretendAccelerator` wants them."""
    name, make, _ = case
    ids, mask = prompts()
    options = options_of(case, num_tokens)
    given = {"inputs": ids.to(model.device), "attention_mask": mask.to(model.device)}
    # Work that happens once per model is not counted.
    model.generate(**given, custom_generate=make(draft), **options | {"max_new_tokens": 2})
    speculation = make(draft)
    with counting_from_the_first_tree(device) as levels:
        output = model.generate(**given, custom_generate=speculation, **options)
    steps = speculation.stats.num_target_passes
    row: dict[str, Any] = {"name": name, "steps": steps, "levels": len(levels) / steps, "output": output.tolist()}
    for kind in ("reads", "uploads", "pinned", "launches"):
        counts: Counter[str] = getattr(device, kind)
        passes = sum(n for line, n in counts.items() if line.startswith(MODEL_PASSES))
        row[kind] = (sum(counts.values()) - passes) / steps
        row[f"{kind} of models"] = passes / steps
        row[f"{kind} of processors"] = sum(n for line, n in counts.items() if line.startswith(PROCESSORS)) / steps
        row[f"{kind} by line"] = {line: n / steps for line, n in counts.most_common(12) if n >= steps / 2}
    return row
