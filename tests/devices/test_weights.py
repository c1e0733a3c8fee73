"""Models whose weights are offloaded to memory or disk decode as ever; what they cost and hold is known."""

from pathlib import Path
from typing import Any
from unittest.mock import patch

import accelerate
import pytest
import torch
from helpers import eagle3_files
from helpers.head_files import SPECULATORS
from helpers.tiny import identical, noisy_copy, prompt, tiny_llama
from transformers import AutoModelForCausalLM

from treespec import SuffixLookup, TreeSpeculation, generate, load_drafter, optimize
from treespec.cpu import optimized_model
from treespec.cpu.linear_kernels import FastForward, Packed
from treespec.errors import UnsupportedModelError
from treespec.hf.weights import OFFLOADED_COST, read_cost, weight_counts, whole_weight
from treespec.lab import pass_times as times
from treespec.policies import Control

OPTIONS: dict[str, Any] = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
REST = ("model.embed_tokens", "model.norm", "model.rotary_emb", "lm_head")
LAYERS = ("model.layers.0", "model.layers.1")
MAPS = {
    "layers": dict.fromkeys(REST, "cpu") | dict.fromkeys(LAYERS, "disk"),
    "one layer": dict.fromkeys((*REST, *LAYERS), "cpu") | {"model.layers.1": "disk"},
    "everything": {"": "disk"},
}


def on_disk(folder: Path, devices: dict[str, str]) -> Any:
    tiny_llama().save_pretrained(folder / "model")
    options: dict[str, Any] = {"device_map": devices, "offload_folder": str(folder / "offload")}
    return AutoModelForCausalLM.from_pretrained(folder / "model", **options).eval()


def in_memory() -> Any:
    return accelerate.cpu_offload(tiny_llama(), execution_device=torch.device("cpu"))


@pytest.mark.parametrize("storage", ["layers", "everything", "memory"])
def test_offloaded_models_decode_as_plain_generate_does(storage: str, tmp_path: Path) -> None:
    model = in_memory() if storage == "memory" else on_disk(tmp_path, MAPS[storage])
    target, ids = tiny_llama(), prompt(2)
    draft = noisy_copy(target)
    plain = target.generate(ids, **OPTIONS)
    speculation = TreeSpeculation(draft, tree=6)
    assert generate(model, ids.tolist(), speculation, **OPTIONS).equal(plain)  # Ids go where the hooks want them.
    assert speculation.stats.num_target_passes < 12
    more = {"do_sample": True, "top_p": 0.9, "cache_implementation": "static"}
    sampled = [
        each.generate(ids, **OPTIONS | more, custom_generate=TreeSpeculation(draft, tree=6, seed=0))
        for each in (model, target)
    ]
    assert sampled[0].equal(sampled[1])


def test_counts_and_costs(tmp_path: Path) -> None:
    whole = weight_counts(tiny_llama().modules())
    assert set(whole) == {"cpu"}
    kept, memory = on_disk(tmp_path, MAPS["one layer"]), in_memory()
    counts = weight_counts(kept.modules())
    assert counts.total() == weight_counts(memory.modules())["memory"] == whole["cpu"] == read_cost(whole)
    assert counts["disk"] == sum(weight.numel() for weight in tiny_llama().model.layers[1].parameters())
    assert read_cost(weight_counts(memory.modules())) == OFFLOADED_COST * whole["cpu"]
    assert read_cost(counts) == counts["cpu"] + OFFLOADED_COST * counts["disk"]
    assert whole_weight(memory.get_input_embeddings()).equal(tiny_llama().get_input_embeddings().weight)


def test_pass_times_are_kept_for_each_storage_of_the_weights(tmp_path: Path) -> None:
    with patch.object(times, "MOST_SECONDS", 0.0), patch.object(times, "cache_folder", lambda: tmp_path):
        for model in (tiny_llama(), in_memory(), on_disk(tmp_path, MAPS["layers"]), tiny_llama()):
            assert times.pass_profile(model).pass_ms
    assert len(list((tmp_path / "passes").iterdir())) == 3


def test_heads_take_the_weights_that_their_files_lack(tmp_path: Path) -> None:
    made = eagle3_files.shape(hidden=32, draft_vocab=64)
    eagle3_files.write(tmp_path / "head", made, eagle3_files.random_tensors(made), SPECULATORS)
    target, offloaded, ids = tiny_llama(), in_memory(), prompt(2)
    drafters = [load_drafter(tmp_path / "head", model, hidden_layers=(1, 2, 0)) for model in (target, offloaded)]
    weights = [dict(drafter.head.named_parameters()) for drafter in drafters]
    assert all(weights[1][name].equal(weight) for name, weight in weights[0].items())
    identical(offloaded, ids, TreeSpeculation(drafters[1], tree=6), **OPTIONS)


def test_optimize_serves_what_stays_in_memory(tmp_path: Path) -> None:
    kept, ids = on_disk(tmp_path, MAPS["one layer"]), prompt(2)
    plain = tiny_llama().generate(ids, **OPTIONS)
    only_packed = patch.object(optimized_model, "exact_kernels", lambda *_: ({"packed": Packed()}, {}))
    with only_packed, optimize(kept):
        packed = [m for m in kept.modules() if any(isinstance(value, FastForward) for value in vars(m).values())]
        assert len(packed) == 8  # Layer 0's, and the output head.
        assert kept.generate(ids, **OPTIONS, custom_generate=TreeSpeculation(SuffixLookup(), tree=6)).equal(plain)
    assert kept.generate(ids, **OPTIONS).equal(plain)
    for model, where in ((in_memory(), "memory"), (on_disk(tmp_path, MAPS["everything"]), "disk")):
        with pytest.raises(UnsupportedModelError, match=f"offloaded to {where}"):
            optimize(model)


def test_control_drafts_where_passes_fetch_weights() -> None:
    """A draft model in memory costs a part of a pass that fetches as many weights."""
    for model, is_drafting in ((in_memory(), True), (tiny_llama(), False)):
        control = Control(pass_ms={1: 80.0, 16: 81.0}, is_timed=False)
        speculation = TreeSpeculation(noisy_copy(tiny_llama()), tree=control)
        model.generate(prompt(), **OPTIONS, custom_generate=speculation)
        assert (speculation.stats.choices.most_common(1)[0][0] != "plain") == is_drafting
