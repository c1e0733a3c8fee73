"""Block-parallel heads' files and training pass: all that can be wrong with a checkpoint, formats, anchored blocks."""

import json

import pytest
import torch
from block_files import AUTHORS, FULL, SLIDING, SPECULATORS, PlainBlock, dspark, random_tensors, shape, write
from safetensors.torch import load_file, save_file
from test_heads import edit_config, edit_layer, edit_tensors, truncate
from tiny import tiny_llama

from treespec import from_config, load_drafter
from treespec.drafters import BlockDrafter
from treespec.errors import CheckpointError, ConfigError
from treespec.heads.dflash import BlockConfig, BlockHead, Span
from treespec.heads.export import save_head
from treespec.heads.layers import LayerConfig
from treespec.hf.heads import load_head

MADE = dspark()


@pytest.fixture(scope="module")
def target():
    return tiny_llama(num_layers=8)


W1, CONFIDENCE = "markov_head__markov_w1__weight", "confidence_head__proj__weight"
WRONG = {
    "truncated": (truncate, "truncated or no safetensors"),
    "missing tensors": (
        lambda f: edit_tensors(f, fc__weight=None, hidden_norm__weight=None),
        r"missing: fc\.weight, h",
    ),
    "half a projection": (
        lambda f: edit_tensors(f, layers__1__self_attn__k_proj__weight=None),
        r"missing: .*1.*k_proj",
    ),
    "no head of a reduced vocabulary": (lambda f: edit_tensors(f, lm_head__weight=None), r"missing: lm_head\.weight"),
    "no layer": (lambda f: edit_layer(f, num_hidden_layers=3), r"missing: layers\.2\."),
    "unknown tensors": (lambda f: edit_tensors(f, selector__weight=torch.ones(2)), r"unknown: selector\.weight"),
    "features of other layers": (
        lambda f: edit_config(f, aux_hidden_state_layer_ids=[1, 2, 3]),
        r"fc\.weight expected \[32, 96\], got \[32, 64\]",
    ),
    "no Markov head": (lambda f: edit_tensors(f, **{W1: None}), r"missing: markov_head\.markov_w1"),
    "a Markov head of another rank": (lambda f: edit_config(f, markov_rank=7), r"markov_w1\.weight expected \[64, 7\]"),
    "another Markov head": (lambda f: edit_config(f, markov_head_type="gated"), "'gated' is not read, only vanilla"),
    "another projector": (lambda f: edit_config(f, projector_type="domino"), "'domino' is not read"),
    "no confidence head": (lambda f: edit_tensors(f, **{CONFIDENCE: None}), r"missing: confidence_head\.proj"),
    "no block": (lambda f: edit_config(f, block_size=None), "block_size, got None"),
    "a block of one": (lambda f: edit_config(f, block_size=1), "must be 2 or more, got 1"),
    "no mask token": (lambda f: edit_config(f, mask_token_id=None), r"mask_token_id in \[0, 64\), got None"),
    "a mask token beyond the vocabulary": (lambda f: edit_config(f, mask_token_id=64), r"in \[0, 64\), got 64"),
    "layers that are none": (lambda f: edit_config(f, aux_hidden_state_layer_ids=["2", "3"]), "list of layer numbers"),
    "layers of a deeper model": (lambda f: edit_config(f, aux_hidden_state_layer_ids=[2, 20]), "model of 8 layers"),
    "other kinds of layers": (lambda f: edit_layer(f, layer_types=["linear_attention"] * 2), "layer_types must name"),
    "kinds of too few layers": (lambda f: edit_layer(f, layer_types=[FULL]), "layer_types must name"),
    "no window": (lambda f: edit_layer(f, layer_types=[FULL, SLIDING]), "sliding_window, got None"),
    "no object": (lambda f: edit_config(f, dflash_config=[4]), "dflash_config must be an object, got list"),
    "no d2t": (lambda f: edit_tensors(f, d2t=None), "lacks d2t"),
    "another speculator": (lambda f: edit_config(f, speculators_model_type="dflash2"), "'dflash2' speculator"),
    "another target's size": (lambda f: edit_config(f, target_hidden_size=48), r"fc\.weight expected \[32, 96\]"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_checkpoint_says_what_is_wrong(tmp_path, target, name):
    spoil, message = WRONG[name]
    write(tmp_path, MADE, random_tensors(MADE), SPECULATORS)
    spoil(tmp_path)
    with pytest.raises(CheckpointError, match=message):
        load_drafter(tmp_path, target)


def test_a_head_of_another_model_is_refused(tmp_path, target):
    write(tmp_path, MADE, random_tensors(MADE), SPECULATORS)
    with pytest.raises(CheckpointError, match=r"vocabulary of 64 tokens, LlamaForCausalLM has 72.*another model"):
        load_drafter(tmp_path, tiny_llama(72, num_layers=8))
    with pytest.raises(CheckpointError, match="embedding is 48 wide where the head is 32"):
        load_drafter(tmp_path, tiny_llama(hidden_size=48))
    with pytest.raises(ConfigError, match="give hidden_layers="):
        load_drafter(tmp_path, target, hidden_layers=(1, 2, 3))


def test_which_hidden_states_are_fused(tmp_path, target):
    """z-lab counts layers' outputs from zero and spreads them by default; speculators names hidden states."""
    whole = shape(draft_vocab=64)
    write(tmp_path, whole, random_tensors(whole), AUTHORS)
    own = {"mask_token_id": 63}
    given = {
        (1, 2): {},
        (4, 6): {"dflash_config": own | {"target_layer_ids": [3, 5]}},
        (2, 6): {"dflash_config": own, "num_target_layers": 8},
    }
    for layers, keys in given.items():
        edit_config(tmp_path, **keys)
        assert load_drafter(tmp_path, target).hidden_layers == layers
    assert load_drafter(tmp_path, target, hidden_layers=(0, -1)).hidden_layers == (0, -1)
    edit_config(tmp_path, dflash_config=own, num_target_layers=None)
    with pytest.raises(CheckpointError, match="num_target_layers"):
        load_drafter(tmp_path, target)
    write(tmp_path, MADE, random_tensors(MADE), SPECULATORS)
    assert load_drafter(tmp_path, target).hidden_layers == (1, 2)


def test_what_a_block_sees_is_read(tmp_path, target):
    mixed = {"layer_types": [FULL, SLIDING], "sliding_window": 5}
    made = shape(draft_vocab=64, llama=mixed)
    expected = {
        (AUTHORS, ()): (Span(), Span(5)),
        (AUTHORS, ("causal",)): (Span(None, True), Span(5, True)),
        (SPECULATORS, ()): (Span(), Span(5, True)),
        (SPECULATORS, ("non-causal",)): (Span(), Span(5)),
    }
    for (format_name, words), spans in expected.items():
        write(tmp_path, made, random_tensors(made), format_name)
        if "causal" in words:
            own = json.loads((tmp_path / "config.json").read_text())["dflash_config"]
            edit_config(tmp_path, dflash_config=own | {"causal": True})
        if "non-causal" in words:
            edit_config(tmp_path, sliding_window_non_causal=True)
        assert load_head(tmp_path, target).config.spans == spans


def test_a_whole_vocabulary_shares_the_targets_own_weights(tmp_path, target):
    made = shape(draft_vocab=64)
    head = load_head(write(tmp_path, made, random_tensors(made), AUTHORS), target)
    assert head.lm_head.weight.data_ptr() == target.lm_head.weight.data_ptr()
    assert head.embedding.data_ptr() == target.get_input_embeddings().weight.data_ptr()


@pytest.mark.parametrize("name", ["dflash", "dspark", "everything", "rows of the target's head", "whole vocabulary"])
def test_saved_heads_hold_the_same_tensors(tmp_path, target, name):
    made = {
        "dflash": shape(),
        "dspark": MADE,
        "everything": dspark(
            extras=("head_norms", "biases", "embedding", "confidence"),
            llama={"layer_types": [SLIDING, FULL], "sliding_window": 5},
        ),
        "rows of the target's head": MADE,
        "whole vocabulary": shape(draft_vocab=64, extras=("head_norms", "lm_head")),
    }[name]
    tensors = random_tensors(made)
    head = load_head(write(tmp_path / "a", made, tensors, SPECULATORS), target)
    has_lm_head = not name.startswith("rows")
    if not has_lm_head:
        head.lm_head.weight.data = tensors["lm_head.weight"] = target.lm_head.weight.data[head.target_ids]
    save_head(head, (1, 6), tmp_path / "b", "some/model", has_lm_head, "embed_tokens.weight" in tensors)
    saved = load_file(tmp_path / "b" / "model.safetensors")
    assert saved.keys() == tensors.keys() - (set() if has_lm_head else {"lm_head.weight"})
    again = load_drafter(tmp_path / "b", target)
    assert isinstance(again, BlockDrafter)
    assert again.hidden_layers == (1, 6)
    assert again.head.config == head.config.__class__(**vars(head.config) | {"hidden_layers": (1, 6)})
    assert again.head.state_dict().keys() == head.state_dict().keys()
    for key, tensor in again.head.state_dict().items():
        assert torch.equal(tensor, head.state_dict()[key])


def test_spans_that_the_format_has_no_words_for_are_not_written(tmp_path):
    layer = LayerConfig(8, 8, 1, 1, 8)
    for spans in ((Span(None, True),), (Span(4), Span(5)), (Span(4), Span(4, True))):
        config = BlockConfig(layer, 16, 16, 8, 1, block_size=4, mask_token=0, spans=spans)
        head = BlockHead(config, torch.zeros(16, 8), torch.arange(16))
        with pytest.raises(ConfigError, match="causal blocks only with it"):
            save_head(head, (1,), tmp_path)


@pytest.mark.parametrize("made", [shape(), MADE, dspark(llama={"layer_types": [FULL, SLIDING], "sliding_window": 2})])
def test_blocks_anchored_in_texts_are_drafts(tmp_path, target, made):
    """Training's pass over two texts of different lengths against the plain reading of each block alone."""
    tensors = random_tensors(made)
    head = load_head(write(tmp_path, made, tensors, SPECULATORS), target)
    plain = PlainBlock(made, tensors, target.get_input_embeddings().weight, target.lm_head.weight)
    generator = torch.Generator().manual_seed(1)
    texts, states = torch.randint(0, 64, (2, 9), generator=generator), torch.randn(2, 9, 64, generator=generator)
    anchors, mask = torch.tensor([[5, 0, 3], [4, 1, 4]]), torch.arange(9) < torch.tensor([[9], [5]])
    outputs = head(texts, states, anchors, mask)
    assert list(outputs.shape) == [2, 3, 3, 32]
    after = torch.randint(0, 64, (2, 3, 3), generator=generator)
    after[:, :, 0] = texts.gather(1, anchors)
    logits = head.read(outputs, after)
    for row, block in ((row, block) for row in range(2) for block in range(3)):
        anchor = int(anchors[row, block])
        for depth in range(3):
            text, path = texts[row, : anchor + 1].tolist(), after[row, block, 1 : depth + 1].tolist()
            expected = plain.logits(states[row, :anchor], text, path)[head.target_ids]
            torch.testing.assert_close(logits[row, block, depth].double(), expected, atol=1e-4, rtol=1e-4)
        plain._outputs.clear()
    assert torch.equal(head(texts, states, anchors), outputs)  # nobody looks behind an anchor
    total = logits.sum() + (head.confidence(outputs, after).sum() if made["rank"] else 0)
    total.backward()
    assert all(parameter.grad is not None for parameter in head.parameters())


@pytest.mark.parametrize("is_markov", [True, False])
def test_confidence_is_that_of_the_files_head(tmp_path, target, is_markov):
    made = dspark(extras=("head_norms", "confidence", *(["markov confidence"] if is_markov else [])))
    tensors = random_tensors(made)
    head = load_head(write(tmp_path, made, tensors, SPECULATORS), target)
    states, tokens = torch.randn(2, 3, 32, generator=torch.Generator().manual_seed(0)), torch.arange(6).view(2, 3)
    weight, bias = tensors["confidence_head.proj.weight"], tensors["confidence_head.proj.bias"]
    expected = states @ weight[0, :32] + bias
    if is_markov:
        expected = expected + tensors["markov_head.markov_w1.weight"][tokens] @ weight[0, 32:]
    torch.testing.assert_close(head.confidence(states, tokens), expected)


@pytest.mark.parametrize(("method", "made"), [("dflash", shape()), ("dspark", MADE)])
def test_from_config_takes_a_head(tmp_path, target, method, made):
    write(tmp_path, made, random_tensors(made), SPECULATORS)
    config = {"method": method, "model": str(tmp_path), "num_speculative_tokens": 3}
    speculation = from_config(config, target=target, seed=1)
    ids = torch.tensor([[5, 9, 2, 7]])
    plain = target.generate(ids, max_new_tokens=8, do_sample=False)
    assert torch.equal(target.generate(ids, max_new_tokens=8, do_sample=False, custom_generate=speculation), plain)
    assert speculation.stats.num_draft_tokens > 0
    with pytest.raises(ConfigError, match="target="):
        from_config(config)
    with pytest.raises(ConfigError, match="'model'"):
        from_config({"method": method, "num_speculative_tokens": 3}, target=target)
    other = "dspark" if method == "dflash" else "eagle3"
    with pytest.raises(ConfigError, match=f"head of method {method!r}, the configuration says {other!r}"):
        from_config(config | {"method": other}, target=target)


def test_half_precision(tmp_path):
    half = tiny_llama(num_layers=8).to(torch.bfloat16)
    made = dspark(draft_vocab=64)
    head = load_head(write(tmp_path, made, random_tensors(made), AUTHORS), half)
    assert {p.dtype for p in head.parameters()} == {torch.bfloat16} == {head.embedding.dtype}
    ids = torch.tensor([[5, 9, 2, 7]])
    speculation = from_config({"method": "dspark", "model": str(tmp_path), "num_speculative_tokens": 3}, target=half)
    assert half.generate(ids, max_new_tokens=8, custom_generate=speculation).shape == (1, 12)
    assert speculation.stats.num_draft_tokens > 0


def test_tensors_of_another_dtype_are_read(tmp_path, target):
    tensors = random_tensors(MADE)
    write(tmp_path, MADE, tensors, SPECULATORS)
    save_file(
        {name: tensor.half() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()},
        tmp_path / "model.safetensors",
    )
    assert {p.dtype for p in load_head(tmp_path, target).parameters()} == {torch.float32}
