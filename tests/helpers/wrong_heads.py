"""Faults of a folder of a head's files, and the error message of each."""

import json
import shutil

import pytest
import torch
from helpers import dflash_files, eagle3_files, eagle_files
from helpers.checkpoints import code_in_a_pickle, half_a_pickle, no_tensors_in_a_pickle
from helpers.dflash_files import FULL, SLIDING, dspark
from helpers.head_files import SPECULATORS
from safetensors.torch import load_file, save_file

EAGLE, DSPARK = eagle3_files.shape(hidden=32), dspark()
METHODS = {
    "eagle": eagle_files.shape(),
    "eagle3": EAGLE,
    "peagle": eagle3_files.parallel(),
    "dflash": dflash_files.shape(),
    "dspark": DSPARK,
    "dflash2": dflash_files.dflash2(),
}
every_method = pytest.mark.parametrize("method", METHODS)


def files_of(made):
    """The module that writes files of such a head."""
    return dflash_files if "block" in made else eagle_files if "is_eagle" in made else eagle3_files


def write(folder, made, format_name=SPECULATORS):
    """Random files of a head; returns the folder."""
    files = files_of(made)
    return files.write(folder, made, files.random_tensors(made), format_name)


def edit_config(folder, section=None, **changes):
    """Set keys of a section, or at the top."""
    path = folder / "config.json"
    found = json.loads(path.read_text())
    path.write_text(json.dumps(found | ({section: found.get(section, {}) | changes} if section else changes)))


def edit_tensors(folder, **changes):
    """Tensors by name, dots written as two underscores; None takes one away."""
    path = folder / "model.safetensors"
    tensors = load_file(path) | {name.replace("__", "."): tensor for name, tensor in changes.items()}
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, path)


def config(**changes):
    return lambda folder: edit_config(folder, **changes)


def tensors(**changes):
    return lambda folder: edit_tensors(folder, **changes)


def layer(**changes):
    """Keys of the layers' object."""
    return lambda folder: edit_config(folder, "transformer_layer_config", **changes)


def mask_embedding(content):
    return lambda folder: torch.save(content, folder / "mask_embedding.pt")


def overwrite(name, content):
    return lambda folder: (folder / name).write_bytes(content)


def truncate(folder):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])


D2T = eagle3_files.random_tensors(EAGLE)["d2t"]
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "rope_theta": 1}
NAN = torch.full((32,), torch.nan)
ENDLESS, LAYERS = 10**9, "eagle_aux_hidden_state_layer_ids"
WRONG_EAGLE3 = {
    "truncated": (truncate, "truncated or no safetensors"),
    "a pickle of code": (code_in_a_pickle, r"pytorch_model\.bin is damaged, or holds more than tensors"),
    "a pickle of no tensors": (no_tensors_in_a_pickle, "must hold tensors by name, found dict"),
    "half a pickle": (half_a_pickle, "is damaged, or holds more than tensors"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), r"found none"),
    "no configuration": (lambda f: (f / "config.json").unlink(), "there is no .*config.json"),
    "damaged configuration": (overwrite("config.json", b"{"), "no JSON"),
    "a list": (overwrite("config.json", b"[]"), "must hold a JSON object, got list"),
    "twice": (lambda f: shutil.copy(f / "model.safetensors", f / "more.safetensors"), "another file of the folder"),
    "nan": (tensors(norm__weight=NAN), "NaN or infinity in norm.weight"),
    "nan in one byte": (tensors(norm__weight=NAN.to(torch.float8_e4m3fn)), "infinity in norm.weight"),
    "missing tensors": (tensors(fc__weight=None, norm__weight=None), r"missing: fc\.weight, norm"),
    "half a projection": (tensors(layers__0__self_attn__k_proj__weight=None), r"missing: .*k_proj"),
    "unknown tensors": (tensors(medusa__0__weight=torch.ones(2)), r"unknown: medusa\.0\.weight"),
    "another shape": (
        tensors(lm_head__weight=torch.ones(39, 32)),
        r"lm_head\.weight expected \[40, 32\], got \[39, 32",
    ),
    "no size": (layer(hidden_size=None), "hidden_size must be an int of at least 1 .*, got None"),
    "a size as text": (config(draft_vocab_size="40"), "draft_vocab_size must be .*, got '40'"),
    "uneven heads": (layer(num_key_value_heads=3), "key heads that divide the heads"),
    "epsilon": (layer(rms_norm_eps="small"), "rms_norm_eps"),
    "no layer": (config(transformer_layer_config=[]), r"transformer_layer_config must be an object, got \[\]"),
    "another speculator": (config(speculators_model_type="mlp"), "holds a 'mlp' speculator"),
    "another activation": (layer(hidden_act="relu2"), "hidden_act must be 'silu' or 'gelu' or .* got 'relu2'"),
    "another rope": (layer(rope_scaling={"rope_type": "longrope"}), "'longrope' is not supported"),
    "rope without factor": (layer(rope_scaling={"rope_type": "linear"}), "wrong one: KeyError.'factor'"),
    "rope of words": (layer(rope_theta="far"), "wrong one: ValueError"),
    "rope of nothing": (layer(rope_theta=None), "wrong one: TypeError"),
    "rope that divides by zero": (layer(rope_scaling=YARN), "division by zero"),
    "rope of layers": (layer(rope_parameters={"full_attention": {}}), "one flat object"),
    "partial rope of an odd number": (layer(partial_rotary_factor=0.5), "wrong one: .*numbers cannot be rotated"),
    "mixed layers": (layer(layer_types=[FULL, SLIDING], sliding_window=5), "one type for all layers"),
    "layers without end": (layer(num_hidden_layers=ENDLESS), "num_hidden_layers must be .* at most .*, got 1000000000"),
    "no d2t": (tensors(d2t=None), "lacks d2t"),
    "d2t without end": (config(draft_vocab_size=10**15), "draft_vocab_size must be .* at most 16777216"),
    "d2t of another size": (tensors(d2t=D2T[1:]), r"d2t must be int64 \[40\]"),
    "d2t of complex numbers": (tensors(d2t=D2T * 1j), r"d2t must be int64 \[40\], got torch.complex"),
    "d2t beyond the vocabulary": (tensors(d2t=D2T + 30), r"different ids in \[0, 64\)"),
    "d2t that maps two to one": (tensors(d2t=-torch.arange(40)), "40 different ids"),
    "embedding of another size": (
        tensors(embed_tokens__weight=torch.ones(64, 16)),
        r"expected \[64, 32\], got \[64, 16",
    ),
    "another target's size": (config(target_hidden_size=48), "hidden states of size 48, LlamaForCausalLM has 32"),
    "layers that are not numbers": (config(**{LAYERS: ["2"]}), "list of layer numbers"),
    "layers of a deeper model": (config(**{LAYERS: [2, 8, 20]}), r"indices \[2, 8, 20\] for a model of 8 layers"),
    "many heads": (layer(num_attention_heads=2**24, head_dim=2**20), "another shape"),
    "sizes without end": (layer(intermediate_size=10**30), "intermediate_size must be .* at most 16777216, got 10000"),
    "features without end": (config(num_aux_hidden_states=2**24, fc_norm=True), "at most 1024, got"),
}
WRONG_EAGLE3 |= {
    f"weights of {dtype}": (tensors(fc__weight=torch.ones(32, 96).to(dtype)), rf"fc\.weight \({dtype}\)")
    for dtype in (torch.int8, torch.complex64, torch.float8_e8m0fnu)
}

WRONG_DFLASH = {  # Besides what all kinds read by the same code.
    "no head of a reduced vocabulary": (tensors(lm_head__weight=None), r"missing: lm_head\.weight"),
    "no layer": (layer(num_hidden_layers=3), r"missing: layers\.2\."),
    "features of other layers": (
        config(aux_hidden_state_layer_ids=[1, 2, 3]),
        r"fc\.weight expected \[32, 96\], got \[32, 64\]",
    ),
    "no Markov head": (tensors(markov_head__markov_w1__weight=None), r"missing: markov_head\.markov_w1"),
    "a Markov head of another rank": (config(markov_rank=7), r"markov_w1\.weight expected \[64, 7\]"),
    "a Markov head without end": (config(markov_rank=10**30), "markov_rank must be .* at most 16777216"),
    "a Markov head without its gate": (config(markov_head_type="gated"), "missing: markov_head.gate_proj.bias"),
    "another projector": (config(projector_type="gru"), "projector_type must be 'dflash' or 'dspark' .* 'gru'"),
    "a selector without candidates": (config(selector_rank=4), "selector_top_k must be .*, got None"),
    "a selector of a part": (config(selector_rank=4, selector_top_k=2), "draft_vocab_size must be the whole"),
    "convolutions without their tensors": (
        config(conv_kernel_size=2, conv_group_size=8),
        r"missing: layers\.0\.attention_conv",
    ),
    "convolutions of uneven groups": (
        config(conv_kernel_size=2, conv_group_size=7),
        "conv_group_size must be a divisor of the hidden size 32",
    ),
    "sinks without their tensors": (config(attention_sink_bias=True), r"missing: .*attention_sink_bias"),
    "no block": (config(block_size=None), "block_size must be .*, got None"),
    "a block of one": (config(block_size=1), "block_size must be an int of at least 2 .*, got 1"),
    "a mask embedding of another token": (
        mask_embedding({"embedding": NAN, "mask_token_id": 5}),
        r"mask_embedding\.pt is of the mask token 5, .* says 63",
    ),
    "no mask embedding": (mask_embedding({"mask_token_id": 63}), r"mask_embedding\.pt must hold an embedding"),
    "a mask embedding that is not finite": (mask_embedding(NAN), r"\.pt must hold an embedding of finite numbers"),
    "no mask token": (config(mask_token_id=None), "mask_token_id must be .* at most 63, got None"),
    "a mask token beyond the vocabulary": (config(mask_token_id=64), "at most 63, got 64"),
    "kinds of kinds": (layer(layer_types=[[FULL], [FULL]]), "layer_types must be a list of"),
    "layers without end": (layer(num_hidden_layers=ENDLESS), "num_hidden_layers must be .* at most .*, got 1000000000"),
    "kinds of too few layers": (layer(layer_types=[FULL]), "layer_types must be a list of"),
    "no window": (layer(layer_types=[FULL, SLIDING]), "sliding_window must be .*, got None"),
    "no object": (config(dflash_config=[4]), r"dflash_config must be an object, got \[4\]"),
}
WRONG = [(EAGLE, *case) for case in WRONG_EAGLE3.values()] + [(DSPARK, *case) for case in WRONG_DFLASH.values()]
WRONG_IDS = [f"eagle3, {name}" for name in WRONG_EAGLE3] + [f"dspark, {name}" for name in WRONG_DFLASH]
