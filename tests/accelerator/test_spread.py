"""A target spread over two devices, drafters on another one than the target's: the output is that of one device."""

import warnings
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from accelerate.hooks import AlignDevicesHook, add_hook_to_module
from helpers import dflash_files, eagle3_files
from helpers.accelerator.device import DEVICE, PretendAccelerator, to_device
from helpers.accelerator.waits import prompts, tiny_models
from helpers.head_files import SPECULATORS
from helpers.medusa_files import random_heads

from treespec import TreeSpeculation, load_drafter
from treespec.engine.target_probs import TargetProbs
from treespec.heads import Medusa
from treespec.hf import TreeScorer
from treespec.hf.introspect import CACHE_NAME

slow = pytest.mark.slow
CPU = torch.device("cpu")
PARTS = ("model.embed_tokens", "model.layers.0", "model.layers.1", "model.norm", "model.rotary_emb", "lm_head")
SPLITS = {"late layer": PARTS[2:3], "early part": PARTS[:2], "norm and output": (PARTS[3], PARTS[5])}
GREEDY = {"do_sample": False}
SAMPLED = {"do_sample": True, "temperature": 0.9, "top_p": 0.9, "repetition_penalty": 1.2}
STATIC = {"do_sample": False, "cache_implementation": "static"}


def spread(model: Any, away: tuple[str, ...]) -> Any:
    """Some parts on the pretended device, inputs moved to where they are needed, as `device_map` has it done."""
    for name in away:
        to_device(model.get_submodule(name))
    for name in ("", *PARTS):
        module = model.get_submodule(name)
        first = PARTS[0] if name == "" else name  # The whole takes and returns what is where the embedding is.
        device = DEVICE if first in away else CPU
        hook = AlignDevicesHook(device, io_same_device=name == "", skip_keys=CACHE_NAME)
        add_hook_to_module(module, hook)
    return model


@contextmanager
def accelerator() -> Any:
    with PretendAccelerator() as device, warnings.catch_warnings():
        yield device


def decode(model: Any, speculation: TreeSpeculation | None, device: torch.device, **more: Any) -> list[list[int]]:
    ids, mask = prompts()
    options = {"max_new_tokens": 6, "eos_token_id": None, "pad_token_id": 0, "custom_generate": speculation, **more}
    out = model.generate(ids[:2].to(device), attention_mask=mask[:2].to(device), **options)
    return (out.inner if out.device.type == DEVICE.type else out).tolist()


def expected(more: dict[str, Any], drafter: Any = None) -> list[list[int]]:
    """All on the CPU: greedy texts are plain generate's own."""
    model, draft = tiny_models()
    speculation = TreeSpeculation(drafter or draft, tree=6, seed=0)
    return decode(model, speculation if more["do_sample"] else None, CPU, **more)


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("late layer", GREEDY),
        pytest.param("late layer", SAMPLED, marks=slow),
        pytest.param("early part", STATIC, marks=slow),
        pytest.param("norm and output", GREEDY, marks=slow),
    ],
)
def test_spread_targets_decode_as_on_one_device(name: str, more: dict[str, Any]) -> None:
    model, draft = tiny_models()
    first = DEVICE if PARTS[0] in SPLITS[name] else CPU
    devices: set[str] = set()
    init = TargetProbs.__init__

    def record(probs: Any, trees: Any, raw: Any, *args: Any) -> None:
        devices.add(str(raw.logits.device))
        init(probs, trees, raw, *args)

    with accelerator(), patch.object(TargetProbs, "__init__", record):
        spread(model, SPLITS[name])
        out = decode(model, TreeSpeculation(draft, tree=6, seed=0), first, **more)
    assert out == expected(more)
    assert devices == {str(first)}


@pytest.mark.parametrize("is_offloaded", [False, True])
def test_prompts_on_the_cpu(is_offloaded: bool) -> None:
    """As transformers allows them; it takes a model whose first weights are offloaded for one on "meta"."""
    with accelerator():
        model, draft = map(to_device, tiny_models())
        with ExitStack() as stack:
            if is_offloaded:
                for module in (model, model.get_input_embeddings()):
                    add_hook_to_module(module, AlignDevicesHook(DEVICE, io_same_device=True, skip_keys=CACHE_NAME))
                stack.enter_context(patch.object(type(model), "device", torch.device("meta")))
            found = decode(model, TreeSpeculation(draft, tree=6), CPU, **GREEDY)
    assert found == expected(GREEDY)


def test_every_layer_caches_where_it_is() -> None:
    model, _ = tiny_models()
    with accelerator():
        scorer = TreeScorer(spread(model, SPLITS["late layer"]))
        scorer.prefill(torch.ones(2, 5, dtype=torch.int64), torch.ones(2, 5, dtype=torch.bool))
        for paths in ([(0, 2), (0,)], [(0, 1), (0, 2)]):
            logits = scorer.extend(torch.tensor([[3, 4, 5]] * 2), torch.tensor([[-1, 0, 0]] * 2)).logits
            scorer.commit(paths)
            layers: Any = scorer.cache.layers
            assert [layer.keys.device for layer in layers] == [layer.values.device for layer in layers] == [CPU, DEVICE]
        scorer.select_rows([1])
        assert [layer.keys.shape[0] for layer in layers] == [1, 1]
        assert layers[0].keys.shape == layers[1].keys.shape
        assert logits.device == scorer.device == CPU


@pytest.mark.parametrize(("who", "more"), [pytest.param("target", SAMPLED, marks=slow), ("draft", GREEDY)])
def test_a_draft_model_on_another_device(who: str, more: dict[str, Any]) -> None:
    model, draft = tiny_models()
    with accelerator():
        to_device(model if who == "target" else draft)
        device = DEVICE if who == "target" else CPU
        assert decode(model, TreeSpeculation(draft, tree=6, seed=0), device, **more) == expected(more)


def head(kind: str, folder: Path, target: Any) -> Any:
    """A drafter with a random head."""
    if kind == "Medusa":
        return Medusa(random_heads())
    files = {"EAGLE-3": eagle3_files, "DFlash": dflash_files}[kind]
    made = files.shape(hidden=32)
    files.write(folder, made, files.random_tensors(made), SPECULATORS)
    return load_drafter(folder, target, hidden_layers=made["hidden_layers"])


@pytest.mark.parametrize(
    ("kind", "who", "more"),
    [
        pytest.param("DFlash", "target", SAMPLED, marks=slow),
        ("EAGLE-3", "head", GREEDY),
        pytest.param("Medusa", "target", GREEDY, marks=slow),  # Its heads follow the target by themselves.
    ],
)
def test_heads_on_another_device(kind: str, who: str, more: dict[str, Any], tmp_path: Path) -> None:
    model, _ = tiny_models()
    drafter = head(kind, tmp_path, model)
    plain = expected(more, head(kind, tmp_path, model))
    with accelerator():
        to_device(model if who == "target" else drafter.head)
        device = DEVICE if who == "target" else CPU
        assert decode(model, TreeSpeculation(drafter, tree=6, seed=0), device, **more) == plain
