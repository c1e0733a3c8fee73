"""Saved heads: what is written is read again, and what the format cannot express is refused."""

import pytest
import torch
from helpers import dflash_files, eagle3_files
from helpers.dflash_files import FULL, SLIDING, dspark
from helpers.tiny import tiny_llama
from helpers.wrong_heads import METHODS, files_of, write
from safetensors.torch import load_file

from treespec import load_drafter
from treespec.errors import ConfigError
from treespec.heads.dflash.module import DFlashConfig, DFlashHead, Span
from treespec.heads.files.export import save_head
from treespec.heads.modules.layers import LayerConfig
from treespec.hf.loading.heads import load_head


@pytest.fixture(scope="module")
def target():
    return tiny_llama(num_layers=8)


EVERY_FLAG = {"fc_norm": True, "norm_before_residual": True, "norm_output": True, "norm_before_fc": True}
SAVED = {name: METHODS[name] for name in ("eagle", "peagle", "dflash2")} | {
    "eagle3": eagle3_files.shape(
        hidden=32,
        layers=2,
        extras=("head_norms", "biases", "embedding"),
        flags=EVERY_FLAG,
        llama={"layer_types": [SLIDING] * 2, "sliding_window": 5},
    ),
    "dspark": dspark(
        extras=("head_norms", "biases", "embedding", "confidence"),
        llama={"layer_types": [SLIDING, FULL], "sliding_window": 5},
        flags={"input_embedding_scale": 2.0, "final_logit_softcapping": 3.0, "markov_head_type": "gated"},
    ),
    "dflash": dflash_files.shape(
        draft_vocab=64,
        extras=("sinks", "mask_embedding", "lm_head"),
        llama={"hidden_act": "gelu", "partial_rotary_factor": 0.7},
        flags={"attention_sink_bias": True, "output_multiplier": 0.5},
    ),
}


@pytest.mark.parametrize(
    ("name", "has_lm_head"), [*((name, True) for name in SAVED), ("eagle3", False), ("dspark", False)]
)
def test_saved_heads_hold_the_same_tensors(tmp_path, target, name, has_lm_head):
    made = SAVED[name]
    tensors = files_of(made).random_tensors(made)
    head = load_head(write(tmp_path / "a", made), target)
    if "lm_head.weight" not in tensors:
        has_lm_head = False
    elif not has_lm_head:
        head.lm_head.weight.data = tensors["lm_head.weight"] = target.lm_head.weight.data[head.target_ids]
    layers = (8,) if name == "eagle" else (1, 4, 6)[: head.config.num_features]
    save_head(head, layers, tmp_path / "b", "some/model", has_lm_head, "embed_tokens.weight" in tensors)
    saved = load_file(tmp_path / "b" / "model.safetensors")
    assert saved.keys() == {
        name for name in tensors if "confidence" not in name and (has_lm_head or name != "lm_head.weight")
    }
    again = load_drafter(tmp_path / "b", target)
    assert type(again.head) is type(head)
    assert again.hidden_layers == layers
    written = None if name == "eagle" else layers
    assert again.head.config == head.config.__class__(**vars(head.config) | {"hidden_layers": written})
    assert again.head.state_dict().keys() == head.state_dict().keys()
    for key, tensor in again.head.state_dict().items():
        assert torch.equal(tensor, head.state_dict()[key])


def test_what_a_file_cannot_hold_is_refused(tmp_path, target):
    head = load_head(write(tmp_path / "a", METHODS["eagle3"]), target)
    for layers in ([1] * 4, [-1] * 3):
        with pytest.raises(ConfigError, match="fuses 3 hidden layers, counted from 0, got"):
            save_head(head, layers, tmp_path / "b")
    head.fc.weight.data[0, 0] = 7e4
    with pytest.raises(ConfigError, match=r"fc\.weight has weights beyond torch\.float16"):
        save_head(head, range(3), tmp_path / "b", dtype=torch.float16)
    assert not (tmp_path / "b").exists()
    save_head(head, range(3), tmp_path / "b", dtype=torch.bfloat16)


def test_spans_that_the_format_has_no_words_for_are_not_written(tmp_path):
    layer = LayerConfig(8, 8, 1, 1, 8)
    for spans in ((Span(None, True),), (Span(4), Span(5)), (Span(4), Span(4, True))):
        config = DFlashConfig(layer, 16, 16, 8, 1, block_size=4, mask_token=0, spans=spans)
        head = DFlashHead(config, torch.zeros(16, 8), torch.arange(16))
        with pytest.raises(ConfigError, match="causal blocks only with it"):
            save_head(head, (1,), tmp_path)
