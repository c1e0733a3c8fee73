"""Several threads call one model at the same time: each has the output that it would have alone, for every patch."""

import copy
import sys
import threading
from collections import Counter
from typing import Any

import pytest
import torch
from helpers.zoo import SIZES
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from treespec import SuffixLookup, TokenRecycling, TreeSpeculation
from treespec.hf.attention.position_patches import PositionPatches
from treespec.hf.attention.rope_lengths import RopeByLength
from treespec.hf.thread_patches import current, replaced

PROMPT = torch.arange(3, 13)[None]
OPTIONS: dict[str, Any] = {"max_new_tokens": 20, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
WINDOWS = {"attention_types": [[["global", "local"], 1]], "num_layers": 2, "num_heads": 4, "window_size": 8}
DYNAMIC = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}
LONG = {"rope_type": "longrope", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}
LONG |= {"short_factor": [1.0] * 4, "long_factor": [4.0, 5.0, 6.0, 7.0]}
TEMPERED = {"attn_temperature_tuning": True, "no_rope_layers": [0, 1], "floor_scale": 8, "num_local_experts": 2}
TEMPERED |= {"head_dim": 8, "intermediate_size_mlp": 48, "attention_chunk_size": 64}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "windows in a buffer": ("gpt_neo", WINDOWS),
    "alibi of mpt": ("mpt", {"d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 64}),
    "alibi of bloom": ("bloom", {"n_layer": 2, "n_head": 4}),
    "alibi of falcon": ("falcon", {"alibi": True, "new_decoder_architecture": False}),
    "temperatures": ("llama4_text", TEMPERED),
    "dynamic rope": ("llama", {"rope_parameters": DYNAMIC, "max_position_embeddings": 16}),
    "longrope": ("llama", {"rope_parameters": LONG}),
    "folded attention": ("llama", {}),
}


def tiny(name: str) -> Any:
    model_type, options = copy.deepcopy(MODELS[name])
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **SIZES | options)).eval()


@pytest.fixture
def quick_switches():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("quick_switches")
@pytest.mark.filterwarnings("ignore::treespec.TreespecWarning")
@pytest.mark.parametrize("name", MODELS)
def test_threads_share_a_target(name):
    model = tiny(name)
    plain = model.generate(PROMPT, **OPTIONS)
    names = {module: list(vars(module)) for module in model.modules()}
    seen: Counter[str] = Counter()

    def work(is_plain: bool) -> None:
        speculation = None if is_plain else TreeSpeculation([TokenRecycling(), SuffixLookup()], tree=8)
        for _ in range(2):
            try:
                out = model.generate(PROMPT, **OPTIONS, custom_generate=speculation)
                seen["right" if torch.equal(out, plain) else "other tokens"] += 1
            except Exception as error:
                seen[repr(error)] += 1

    threads = [threading.Thread(target=work, args=(is_plain,)) for is_plain in (False, False, True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {"right": 6}
    assert {module: list(vars(module)) for module in model.modules()} == names


def test_every_patch_stands_in_the_models_above():
    kinds = set()
    for model in map(tiny, MODELS):
        patches = PositionPatches(model)
        found = {"blocks": patches._blocks, "windows": patches._windows, "tempered": patches._tempered}
        kinds |= {kind for kind, modules in found.items() if modules}
        kinds |= {"rope"} if RopeByLength(model) else set()
    assert kinds == {"blocks", "windows", "tempered", "rope"}


def test_what_another_thread_sees():
    layer = nn.Linear(2, 2)
    own, others = [], []
    with replaced(layer, "forward", lambda x: x):
        with replaced(layer, "forward", lambda x: 2 * x):
            own.append(layer(torch.ones(1, 2)).tolist())
            thread = threading.Thread(target=lambda: others.append(current(layer, "forward")))
            thread.start()
            thread.join()
            assert copy.deepcopy(layer)(torch.ones(1, 2)).tolist() == others[0](torch.ones(1, 2)).tolist()
        own.append(layer(torch.ones(1, 2)).tolist())
    assert own == [[[2.0, 2.0]], [[1.0, 1.0]]]
    assert others[0].__func__ is nn.Linear.forward
    assert "forward" not in vars(layer)


def test_an_attribute_that_stood_there_stands_there_again():
    layer = nn.Linear(2, 2)
    layer.forward = own = lambda x: x + 1
    with replaced(layer, "forward", lambda x: own(x) * 2):
        assert layer(torch.ones(1, 2)).tolist() == [[4.0, 4.0]]
    assert layer.forward is own
