"""Medusa checkpoints: the public formats give the same heads, and whatever is wrong with a file is named."""

from pathlib import Path

import pytest
import torch
from helpers.medusa_files import authors_tensors, random_heads, vllm_tensors, write

from treespec.errors import CheckpointError, ConfigError, TreespecWarning
from treespec.heads import MedusaHead, MedusaHeads
from treespec.heads.files.keys import HARMLESS
from treespec.heads.medusa.files import KEYS, load_heads

HEADS = random_heads(num_heads=3, num_layers=2)
AUTHORS, VLLM = authors_tensors(HEADS), vllm_tensors(HEADS)


def assert_same(loaded: MedusaHeads, expected: MedusaHeads):
    count = expected.num_heads
    assert loaded.num_heads == count
    features = torch.randn(4, 32, generator=torch.Generator().manual_seed(9))
    torch.testing.assert_close(loaded.logits(features, count), expected.logits(features, count), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("tensors", "config"),
    [
        (AUTHORS, None),
        (AUTHORS, {"medusa_num_heads": 3, "medusa_num_layers": 2}),
        (authors_tensors(HEADS, "medusa_head."), None),
        (VLLM, {"num_heads": 3, "num_hidden_layers": 2, "vocab_size": 64}),
        (vllm_tensors(HEADS, "medusa_heads."), None),
    ],
    ids=["authors", "authors-config", "prefix", "vllm", "vllm-prefix"],
)
def test_public_formats(tensors, config, tmp_path):
    assert_same(load_heads(write(tmp_path, tensors, config)), HEADS)


def test_a_file_other_names_and_the_first_heads(tmp_path):
    write(tmp_path, AUTHORS, {"medusa_num_heads": 2}, name="mine.safetensors")
    for path in (tmp_path / "mine.safetensors", str(tmp_path)):
        assert_same(load_heads(path), MedusaHeads(HEADS.heads[:2]))


def test_keys_of_a_configuration(tmp_path):
    """Each is read, known to have no effect, or refused by name."""
    scaled = MedusaHeads(tuple(MedusaHead(head.blocks, head.output * 0.5) for head in HEADS.heads))
    assert_same(load_heads(write(tmp_path, VLLM, {"logit_scale": 0.5})), scaled)
    harmless = dict.fromkeys([*HARMLESS, *KEYS.harmless, "eos_token_id"], "anything")
    assert_same(load_heads(write(tmp_path, VLLM, harmless)), HEADS)
    with pytest.raises(CheckpointError, match="not known for Medusa heads: wobble"):
        load_heads(write(tmp_path, VLLM, {"wobble": 1}))


def test_heads_without_blocks_and_without_biases(tmp_path):
    bare = random_heads(num_layers=0)
    assert_same(load_heads(write(tmp_path, authors_tensors(bare))), bare)
    unbiased = random_heads(num_layers=1, has_bias=False)
    assert_same(load_heads(write(tmp_path, vllm_tensors(unbiased))), unbiased)


def test_heads_that_share_the_targets_output(tmp_path):
    output = torch.randn(64, 32, generator=torch.Generator().manual_seed(2))
    folder = write(tmp_path, authors_tensors(HEADS, has_outputs=False), {"version": "2", "medusa_num_heads": 3})
    shared = MedusaHeads(tuple(MedusaHead(head.blocks, output) for head in HEADS.heads))
    assert_same(load_heads(folder, output_weight=output), shared)
    with pytest.raises(CheckpointError, match="output_weight="):
        load_heads(folder)


def test_one_shared_output_in_the_file(tmp_path):
    tensors = {name: t for name, t in VLLM.items() if "lm_heads" not in name}
    shared = MedusaHeads(tuple(MedusaHead(head.blocks, HEADS.heads[0].output) for head in HEADS.heads))
    for name in ("lm_head.weight", "lm_heads.0.weight"):
        assert_same(load_heads(write(tmp_path, tensors | {name: HEADS.heads[0].output})), shared)


@pytest.mark.parametrize("is_cut", [True, False])
def test_truncated_vocabulary(tmp_path, is_cut):
    token_map = torch.tensor([5, 0, 63, 7])
    tensors = VLLM | {"token_map": token_map}
    if is_cut:
        tensors = {name: t[token_map] if "lm_heads" in name else t for name, t in tensors.items()}
    loaded = load_heads(write(tmp_path, tensors))
    features = torch.randn(2, 32, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(loaded.logits(features, 3), HEADS.logits(features, 3)[..., token_map])
    assert torch.equal(loaded.target_ids, token_map)


def lacking(name):
    return {key: tensor for key, tensor in AUTHORS.items() if key != name}


@pytest.mark.parametrize(
    ("tensors", "config", "message"),
    [
        (lacking("1.1.linear.weight"), None, r"lacks tensors of 3 heads with 2 layers: block 1 1 weight$"),
        (lacking("2.2.weight"), None, "output 2"),
        (AUTHORS, {"medusa_num_layers": 3}, "with 3 layers"),
        (AUTHORS, {"medusa_num_heads": 8}, "of 8 heads.*block 3 0 weight, .* and 21 more"),
        (AUTHORS, {"medusa_num_heads": 10**9}, "medusa_num_heads must be .* at most 15, got 1000000000"),
        (AUTHORS | {"99999999999.0.linear.weight": torch.ones(32, 32)}, None, r"the number 9{11}$"),
        ({"lm_head.weight": HEADS.heads[0].output}, {"num_heads": 10**9, "num_hidden_layers": 0}, "at most 1, got 100"),
        (AUTHORS | {"1.2.weight": torch.full((64, 32), torch.nan)}, None, r"NaN or infinity in 1\.2"),
        (AUTHORS | {"1.2.weight": torch.ones(64, 32, dtype=torch.int8)}, None, r"1\.2\.weight \(torch.i"),
        (AUTHORS, {"medusa_num_heads": 0}, "at least one"),
        (AUTHORS, ["no mapping"], "must hold a JSON object, got list"),
        (AUTHORS | {"fc.weight": torch.ones(2, 2)}, None, "'fc.weight'"),
        (AUTHORS | {"1.0.linear.weight": torch.ones(32, 16)}, None, r"head 1 .*\[32, 16\]"),
        (AUTHORS | {"1.2.weight": torch.ones(60, 32)}, None, r"head 1 .*\[60, 32\]"),
        (VLLM | {"token_map": torch.zeros(64, dtype=torch.long)}, None, "must be 64 different ids"),
        (VLLM | {"token_map": torch.tensor([3, -2])}, None, "none negative"),
        (VLLM | {"token_map": torch.tensor([3, 64])}, None, "rows that an output of 64"),
        (VLLM | {"token_map": torch.arange(64.0)}, None, r"must be ids \[W\], got torch.float32"),
        (AUTHORS | {"0.2.weight": torch.ones(64)}, None, r"output must be \[W, H\]"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, tensors, config, message):
    with pytest.raises(CheckpointError, match=message):
        load_heads(write(tmp_path, tensors, config))


@pytest.mark.parametrize("weight", ["x", torch.ones(64), torch.ones(64, 32, dtype=torch.int64)])
def test_an_output_weight_that_is_not_a_matrix_of_floats_is_refused(tmp_path, weight):
    write(tmp_path, authors_tensors(HEADS, has_outputs=False))
    with pytest.raises(ConfigError, match=r"output_weight must be a floating-point tensor \[V, H\], got"):
        load_heads(tmp_path, output_weight=weight)


def test_configurations_are_read_as_utf_8(tmp_path, monkeypatch):
    """Whatever the machine's own encoding is."""
    write(tmp_path, AUTHORS)
    (tmp_path / "config.json").write_bytes('{"medusa_num_heads": 2, "base_model_name_or_path": "Méduse"}'.encode())
    read = Path.read_text
    monkeypatch.setattr(Path, "read_text", lambda path, encoding="ascii": read(path, encoding=encoding))
    assert load_heads(tmp_path).num_heads == 2


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(CheckpointError, match="no file or folder"):
        load_heads(tmp_path / "nothing")
    torch.save(AUTHORS, tmp_path / "medusa_lm_head.pt")
    for path in (tmp_path, tmp_path / "medusa_lm_head.pt"):
        with pytest.warns(TreespecWarning, match=r"is a pickle.*save_file"):
            assert_same(load_heads(path), HEADS)
    write(tmp_path, AUTHORS)
    assert_same(load_heads(tmp_path), HEADS)  # The pickle next to it is left alone.
    file = tmp_path / "medusa_lm_head.safetensors"
    file.write_bytes(file.read_bytes()[:3000])
    with pytest.raises(CheckpointError, match="damaged"):
        load_heads(tmp_path)


def test_two_unnamed_files_are_not_guessed_among(tmp_path):
    for name in ("a.safetensors", "b.safetensors"):
        write(tmp_path, AUTHORS, name=name)
    with pytest.raises(CheckpointError, match=r"a\.safetensors, b\.safetensors"):
        load_heads(tmp_path)
