"""MTP layers in files: where they are looked for, and what is refused by name."""

import json
import shutil

import pytest
import torch
from helpers import multimodal, zoo
from helpers.head_runs import left_padded, run
from helpers.mtp_files import PUBLISHED, write
from helpers.tiny import tiny_llama
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

from treespec import BestFirst, Chain, from_config, load_drafter, load_mtp
from treespec.errors import CheckpointError, ConfigError, UnsupportedModelError
from treespec.lab.named import named_drafters

WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    folder = tmp_path_factory.mktemp("glm4_moe")
    write(folder, "glm4_moe")
    return folder


@pytest.fixture
def folder(original, tmp_path):
    return shutil.copytree(original, tmp_path / "copy")


def change(folder, edit):
    tensors = load_file(folder / WEIGHTS)
    edit(tensors)
    save_file(tensors, folder / WEIGHTS, {"format": "pt"})


def target_of(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def test_a_target_that_was_not_loaded_from_files(original):
    target = zoo.build("glm4_moe")
    with pytest.raises(CheckpointError, match=r"'' is neither a folder nor in the hub's cache: give load_mtp"):
        load_mtp(target)
    assert load_mtp(target, original).head.config.layout == "deepseek"
    with pytest.raises(CheckpointError, match=r"'no/where' is neither a folder"):
        load_mtp(target, "no/where")


def test_files_in_another_format(folder):
    target = target_of(folder)
    torch.save(load_file(folder / WEIGHTS), folder / "pytorch_model.bin")
    (folder / WEIGHTS).unlink()
    with pytest.raises(CheckpointError, match=r"read from \*.safetensors files, .* has none"):
        load_mtp(target)


def test_weights_that_were_dropped_are_named(folder):
    """As `save_pretrained` does."""
    target = target_of(folder)
    target.save_pretrained(folder / "again")
    again = target_of(folder / "again")
    expected = r"names 1 MTP layers, but the files in .*again hold none of their weights: what wrote them \(save_pretr"
    for call in (
        load_mtp,
        lambda model: load_drafter("mtp", model),
        lambda model: named_drafters(["mtp"], model, None, "glm"),
    ):
        with pytest.raises(CheckpointError, match=expected):
            call(again)
    assert load_mtp(again, folder).hidden_layers == (2,)


def test_a_target_without_such_layers(tmp_path):
    tiny_llama().save_pretrained(tmp_path)
    with pytest.raises(
        CheckpointError, match="holds no MTP layers, and the configuration of LlamaForCausalLM names none"
    ):
        load_mtp(target_of(tmp_path))


def drop(ending):
    def edit(tensors):
        del tensors[next(name for name in tensors if name.startswith("model.layers.2.") and name.endswith(ending))]

    return edit


def put(name, tensor):
    return lambda tensors: tensors.update({name: tensor})


WRONG = {
    "a norm is missing": (drop("hnorm.weight"), "lacks layers.2.hnorm.weight, which MTP layers of the deepseek layout"),
    "a projection is missing": (drop("q_proj.weight"), r"not those of Glm4Moe.*layers.0.self_attn.q_proj.weight"),
    "another layout": (
        drop("eh_proj.weight"),
        r"a layout that is not read \(deepseek, qwen, mimo, speculators, ernie, nemotron are\)",
    ),
    "a tensor of another layer": (
        put("mtp.extra", torch.zeros(1)),
        "that no MTP layer of the deepseek layout has: mtp.ex",
    ),
    "an unknown tensor": (put("model.layers.2.wobble", torch.zeros(1)), "unknown or of another shape: layers.0.wobble"),
    "another size": (put("model.layers.2.hnorm.weight", torch.zeros(8)), r"hidden_norm expected \[32\], got \[8\]"),
    "a projection of another size": (
        put("model.layers.2.eh_proj.weight", torch.zeros(32, 32)),
        r"projection expected \[32, 64\], got \[32, 32\]",
    ),
    "integers": (put("model.layers.2.eh_proj.weight", torch.zeros(32, 64).char()), "not plain floating-point numbers"),
    "damaged": (put("model.layers.2.eh_proj.weight", torch.full((32, 64), torch.nan)), "NaN or infinity"),
}


@pytest.mark.parametrize(("edit", "message"), WRONG.values(), ids=WRONG)
def test_wrong_files_are_refused_by_name(original, folder, edit, message):
    target = target_of(original)
    change(folder, edit)
    with pytest.raises(CheckpointError, match=message):
        load_mtp(target, folder)


UNSERVED = {  # Publishers' names of a layer, relative to its number.
    "Step-3.5": (
        "model.layers.2.",
        ("enorm", "hnorm", "eh_proj", "transformer.shared_head.norm", "transformer.shared_head.output"),
    ),
    "Inkling": ("model.mtp.layers.0.", ("embed_norm", "hidden_norm", "input_proj", "transformer_block.attn.wq_du")),
    "MiniMax-M3": ("mtp.layers.0.", ("enorm", "hnorm", "eh_proj", "transformer_layer.self_attn.index_q_proj")),
    "MiMo-V2": ("model.mtp.layers.0.", ("enorm", "hnorm", "eh_proj", "pre_mlp_layernorm", "final_layernorm")),
    "LongCat-Flash": ("model.mtp.layers.0.", ("enorm.m", "hnorm.m", "eh_proj", "self_attn.kv_b_proj")),
}


@pytest.mark.parametrize("name", UNSERVED)
def test_kinds_that_are_not_served_are_refused_by_name(tmp_path, name):
    prefix, parts = UNSERVED[name]
    save_file({f"{prefix}{part}.weight": torch.ones(32) for part in parts}, tmp_path / WEIGHTS)
    with pytest.raises(UnsupportedModelError, match=f"of a kind that is not served, of {name}"):
        load_mtp(zoo.build("qwen2"), tmp_path)


SCALES = {
    "of blocks, as in DeepSeek's files": ("_scale_inv", (24, 16)),
    "of rows, as in compressed-tensors": ("_scale", (1, 1 << 20)),
    "of tensors": ("_scale", (1 << 20, 1 << 20)),
}


@pytest.mark.parametrize("name", SCALES)
def test_weights_in_8_bit_floats_are_multiplied_by_their_scales(original, folder, name):
    suffix, block = SCALES[name]
    target, generator = target_of(original), torch.Generator().manual_seed(0)
    wide = {}

    def edit(tensors):
        for key in [key for key in tensors if key.startswith("model.layers.2.") and key.endswith("_proj.weight")]:
            if "eh_proj" not in key:
                small = tensors[key].to(torch.float8_e4m3fn)
                scales = (
                    torch.rand([-(-size // b) for size, b in zip(small.shape, block, strict=True)], generator=generator)
                    + 0.5
                )
                rows, columns = (torch.arange(size) // b for size, b in zip(small.shape, block, strict=True))
                wide[key] = small.float() * scales[rows][:, columns]
                tensors |= {key: small, key + suffix: scales}

    change(folder, edit)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": list(block)}
    (folder / "config.json").write_text(json.dumps(config))
    found = load_mtp(target, folder).head.state_dict()
    change(folder, lambda tensors: [tensors.pop(key + suffix) for key in wide] and tensors.update(wide))
    expected = load_mtp(target, folder).head.state_dict()
    assert found.keys() == expected.keys()
    assert all(found[key].equal(expected[key]) for key in expected)


def test_scales_of_other_blocks_are_refused(original, folder):
    key = "model.layers.2.self_attn.q_proj.weight"
    change(folder, lambda tensors: tensors.update({key: tensors[key].half(), key + "_scale_inv": torch.ones(3, 5)}))
    with pytest.raises(CheckpointError, match=r"q_proj.weight_scale_inv \[3, 5\] is not of rows or blocks of"):
        load_mtp(target_of(original), folder)


def test_copies_of_the_targets_weights_are_not_read(folder):
    names = ("embed_tokens", "shared_head.head")
    copies = {f"model.layers.2.{name}.weight": torch.full((zoo.VOCAB_SIZE, 32), torch.nan) for name in names}
    target = target_of(folder)
    change(folder, lambda tensors: tensors.update(copies))
    assert load_mtp(target).head.config.num_layers == 1


def test_sparse_attention_is_refused(tmp_path):
    target = zoo.build("glm_moe_dsa")
    target.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / WEIGHTS)
    copies = {n.replace("layers.1.", "layers.2."): t.clone() for n, t in tensors.items() if "layers.1." in n}
    for name, shape in {"enorm": (32,), "hnorm": (32,), "eh_proj": (32, 64), "shared_head.norm": (32,)}.items():
        copies[f"model.layers.2.{name}.weight"] = torch.ones(shape)
    save_file(tensors | copies, tmp_path / WEIGHTS, {"format": "pt"})
    with pytest.raises(UnsupportedModelError, match="their attention is sparse"):
        load_mtp(target, tmp_path)


def test_wrong_calls(original):
    target = target_of(original)
    for draft_vocab in (0, True, [], [1, 1], [96], [-1], "tokens", [1.0]):
        with pytest.raises(ConfigError, match="draft_vocab must be"):
            load_mtp(target, draft_vocab=draft_vocab)
    with pytest.raises(CheckpointError, match=r"are not those of Qwen2ForCausalLM"):
        load_mtp(zoo.build("qwen2"), original)
    with pytest.raises(ConfigError, match="leave out hidden_layers"):
        load_drafter("mtp", target, hidden_layers=(1,))
    with pytest.raises(ConfigError, match="needs the target model"):
        from_config({"method": "mtp", "num_speculative_tokens": 1})
    with pytest.raises(ConfigError, match="max_length"):
        load_drafter("mtp", target, max_length=0)


def test_files_in_several_parts(folder):
    tensors = load_file(folder / WEIGHTS)
    parts = [{n: t for n, t in tensors.items() if ("experts" in n) is is_first} for is_first in (True, False)]
    (folder / WEIGHTS).unlink()
    names = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    for name, part in zip(names, parts, strict=True):
        save_file(part, folder / name, {"format": "pt"})
    index = {name: file for file, part in zip(names, parts, strict=True) for name in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    target, inputs = target_of(folder), left_padded([6, 4])
    out, stats = run(target, load_mtp(target), inputs, 8, tree=BestFirst(6))
    assert out.equal(target.generate(**inputs, max_new_tokens=8, do_sample=False))
    assert stats.num_draft_tokens > 0


def test_a_multimodal_target(tmp_path):
    """Its text part has the layers, and its file names them as a text model's does."""
    target = multimodal.build(multimodal.BY_NAME["qwen3_5"])
    target.save_pretrained(tmp_path)
    donor = write(tmp_path / "text", "qwen3_5", vocab_size=zoo.VOCAB_SIZE)
    text = load_file(tmp_path / "text" / WEIGHTS)
    mtp = {name: tensor for name, tensor in text.items() if name.startswith("mtp.")}
    assert donor.target.config.hidden_size == target.config.get_text_config().hidden_size
    change(tmp_path, lambda tensors: tensors.update(mtp))
    target = AutoModelForImageTextToText.from_pretrained(tmp_path, dtype=torch.float32).eval()
    inputs = left_padded([6, 4])
    out, stats = run(target, load_mtp(target), inputs, 8, tree=Chain(3))
    assert out.equal(target.generate(**inputs, max_new_tokens=8, do_sample=False))
    assert stats.num_draft_tokens > 0


def test_drawing_what_is_missing_leaves_torchs_generator_alone(original):
    target = target_of(original)
    torch.manual_seed(5)
    load_mtp(target)
    drawn = torch.rand(1)
    torch.manual_seed(5)
    assert torch.rand(1).equal(drawn)


def test_every_layout_has_a_checkpoint():
    from treespec.heads.mtp.files import LAYOUTS

    names = {published.names["projection"] for published in PUBLISHED.values()}
    assert len(names) == sum(not layout.is_speculators for layout in LAYOUTS)  # That one: test_speculators.py.
