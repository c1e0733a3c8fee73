"""Every key of a head's config.json changes what the head drafts, or is known not to, or is refused by name."""

import pytest
import torch
from helpers import dflash_files, eagle3_files, eagle_files
from helpers.dflash_files import AUTHORS, FULL, SLIDING
from helpers.head_files import SPECULATORS
from helpers.published_heads import SERVED, UNSERVED
from helpers.wrong_heads import edit_config, edit_tensors
from helpers.wrong_heads import write as write_head

from treespec.errors import CheckpointError
from treespec.heads.dflash import files as dflash
from treespec.heads.dflash.module import DFlashHead
from treespec.heads.eagle import files as eagle
from treespec.heads.eagle.module import EagleHead
from treespec.heads.eagle3 import files as eagle3
from treespec.heads.eagle3.module import unroll
from treespec.heads.files.build import build_head
from treespec.heads.files.checkpoint import read_checkpoint
from treespec.heads.files.config import NESTED_LAYERS, ConfigReader
from treespec.heads.files.fitting import check_target
from treespec.heads.files.keys import HARMLESS
from treespec.heads.files.unserved import refuse_unserved
from treespec.heads.modules.kv_cache import TrainingCache
from treespec.heads.modules.rotary import ROPE_TYPES, Rotary
from treespec.heads.peagle import files as peagle
from treespec.heads.peagle.module import PEagleHead

EMBEDDING = torch.randn(64, 32, generator=torch.Generator().manual_seed(1))
KINDS = {
    "eagle": (eagle.KEYS, eagle_files.shape(extras=("fusion bias",))),
    "eagle3": (eagle3.KEYS, eagle3_files.shape(hidden=32)),
    "peagle": (peagle.KEYS, eagle3_files.parallel(layers=1)),
    "dflash": (dflash.KEYS, dflash_files.dspark()),
}
every_kind = pytest.mark.parametrize("kind", KINDS)
WINDOW = {"layer_types": [SLIDING], "sliding_window": 5}
WINDOWS = {"layer_types": [SLIDING] * 2, "sliding_window": 2}
YARN = {"rope_type": "yarn", "factor": 4.0}

# Each key with a value that matters, and what the file must say besides for it to matter.
LAYERS = {
    "head_dim": (4, {}),
    "hidden_act": ("gelu", {}),
    "hidden_activation": ("gelu_pytorch_tanh", {}),
    "hidden_size": (48, {}),
    "intermediate_size": (48, {}),
    "max_position_embeddings": (9, {"rope_scaling": YARN}),
    "max_window_layers": (0, {"use_sliding_window": True, "sliding_window": 2}),
    "num_attention_heads": (2, {}),
    "num_hidden_layers": (3, {}),
    "num_key_value_heads": (4, {}),
    "partial_rotary_factor": (0.5, {}),
    "rms_norm_eps": (0.5, {}),
    "rope_parameters": ({"rope_theta": 9.0}, {}),
    "rope_scaling": ({"type": "linear", "factor": 9.0}, {}),
    "rope_theta": (9.0, {}),
    "use_sliding_window": (True, {"max_window_layers": 0, "sliding_window": 2}),
    "vocab_size": (63, {}),
    "logit_scale": (0.5, {}),
}
EAGLE3 = {
    **LAYERS,
    "layer_types": ([SLIDING], {"sliding_window": 5}),
    "sliding_window": (3, WINDOW),
    "draft_vocab_size": (39, {}),
    "eagle_aux_hidden_state_layer_ids": ([1, 3, 6], {}),
    "fc_norm": (True, {}),
    "lm_head_from_target": (True, {"no lm_head": True}),
    "norm_before_fc": (True, {}),
    "norm_before_residual": (True, {}),
    "norm_output": (True, {}),
    "num_aux_hidden_states": (2, {}),
    "num_aux_layers": (2, {}),
    "speculators_model_type": ("dspark", {}),
    "target_hidden_size": (48, {}),
    "target_layer_ids": ([1, 3, 6], {}),
    "truncated_vocab_size": (40, {"draft_vocab_size": None}),
    "use_aux_norm": (True, {}),
}
METHODS = {"proposal_methods": [{"speculative_tokens": 2}]}
CHANGES = {
    "eagle": {
        **LAYERS,
        "layer_types": ([SLIDING], {"sliding_window": 5}),
        "sliding_window": (3, WINDOW),
        "draft_vocab_size": (39, {}),
        "fusion_bias": (False, {}),
        "lm_head_from_target": (True, {"draft_vocab_size": 63, "d2t": torch.zeros(63, dtype=torch.int64)}),
        "speculators_model_type": ("eagle3", {}),
        "target_hidden_size": (48, {}),
    },
    "eagle3": EAGLE3,
    "peagle": EAGLE3
    | {
        "speculators_model_type": ("dflash", {}),
        "mask_token_id": (3, {}),
        "pard_token": (3, {"mask_token_id": None, "pard_token": 4}),
        "ptd_token_id": (3, {"mask_token_id": None, "ptd_token_id": 4}),
        "speculators_config": (METHODS, {}),
    },
    "dflash": {
        **LAYERS,
        "layer_types": ([SLIDING, FULL], {"sliding_window": 2}),
        "sliding_window": (1, WINDOWS),
        "add_swa_attention_sink_bias": (True, {}),
        "attention_sink_bias": (True, {}),
        "attention_value_scale": (0.5, {}),
        "aux_hidden_state_layer_ids": ([2, 3], {}),
        "block_size": (4, {}),
        "causal": (True, {}),
        "conv_group_size": (8, {}),
        "conv_kernel_size": (2, {}),
        "dflash_query_causal": (True, {}),
        "draft_vocab_size": (39, {}),
        "dspark_bonus_anchor": (True, {"speculators_model_type": None, "sample_from_anchor": None}),
        "dspark_markov_rank": (7, {"markov_rank": None}),
        "eagle_aux_hidden_state_layer_ids": ([2, 3], {"aux_hidden_state_layer_ids": None, "target_layer_ids": [0, 1]}),
        "final_logit_softcapping": (0.5, {}),
        "input_embedding_scale": (3.0, {}),
        "is_causal": (True, {"causal": False}),
        "lm_head_from_target": (True, {"no lm_head": True}),
        "markov_head_type": ("gated", {}),
        "markov_rank": (7, {}),
        "mask_token_id": (3, {}),
        "num_target_layers": (12, {"aux_hidden_state_layer_ids": None, "num_target_layers": 8}),
        "output_multiplier": (0.5, {}),
        "sample_from_anchor": (False, {}),
        "selector_rank": (4, {}),
        "selector_top_k": (3, {}),
        "shift_label": (True, {"sample_from_anchor": None}),
        "sliding_window_non_causal": (True, WINDOWS),
        "speculators_model_type": ("dflash", {"sliding_window_non_causal": None, **WINDOWS}),
        "swa_window_size": (1, {"use_swa": True, "sliding_window": 2}),
        "target_hidden_size": (48, {}),
        "target_layer_ids": ([2, 3], {"aux_hidden_state_layer_ids": None, "target_layer_ids": [0, 1]}),
        "use_swa": (True, {"sliding_window": 2}),
    },
}

ONLY_WITH_IT = ("lm_head_from_target", "truncated_vocab_size")
"""Keys that their test's file cannot do without."""


def write(folder, kind, **changes):
    """The kind's head with these keys, each in the layers' object if it is one of theirs."""
    keys, made = KINDS[kind]
    write_head(folder, made)
    if changes.pop("no lm_head", False):
        edit_tensors(folder, lm_head__weight=None)
    if "d2t" in changes:
        edit_tensors(folder, d2t=changes.pop("d2t"))
    layers = {key: value for key, value in changes.items() if key in keys.layers}
    edit_config(folder, **{key: value for key, value in changes.items() if key not in layers})
    edit_config(folder, NESTED_LAYERS, **layers)
    return folder


def drafts(folder):
    """The part of the folder's configuration that its drafter reads, and the head's logits for a text."""
    head = build_head(read_checkpoint(folder), EMBEDDING, EMBEDDING.flip(0))
    check_target(head.config, folder, "target", 32, [64])
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(0, 64, (1, 7), generator=generator)
    states = torch.randn(1, 7, head.config.num_features * head.config.target_hidden_size, generator=generator)
    drafter = head.config.hidden_layers, head.config.layer.window
    if isinstance(head, PEagleHead):
        drafter = *drafter, head.config.mask_token, head.config.num_depths
    if isinstance(head, DFlashHead):
        logits = head.read(head(tokens, states, torch.tensor([[3, 5]])), tokens[:, None, :1])
    elif isinstance(head, EagleHead):
        mask = torch.ones(7, 7, dtype=torch.bool).tril()[None, None]
        logits = head.lm_head(head.run(tokens, states, torch.arange(7)[None], mask, TrainingCache()))
    else:
        logits = torch.stack([head.lm_head(outputs[:, -1]) for outputs in unroll(head, tokens, head.fuse(states), 3)])
    return drafter, logits


def differ(first, second):
    return first[0] != second[0] or first[1].shape != second[1].shape or not torch.allclose(first[1], second[1])


READ = [(kind, key) for kind in KINDS for key in CHANGES[kind]]
READ = [(kind, key) for kind, key in READ if kind != "peagle" or CHANGES[kind][key] is not EAGLE3.get(key)]
"""P-EAGLE's files are read by EAGLE-3's code."""


@pytest.mark.parametrize(("kind", "key"), READ)
def test_a_key_that_is_read_changes_the_drafts_or_stops_the_load(tmp_path, kind, key):
    value, rest = CHANGES[kind][key]
    before = None
    try:
        before = drafts(write(tmp_path / "before", kind, **rest))
        after = drafts(write(tmp_path / "after", kind, **rest | {key: value}))
    except CheckpointError:
        assert (before is None) == (key in ONLY_WITH_IT)
        if before is None:
            drafts(write(tmp_path / "after", kind, **rest | {key: value}))
        return
    assert differ(before, after)


@every_kind
def test_every_key_of_the_table_is_tried(monkeypatch, tmp_path, kind):
    """And none is read that is not in the table."""
    keys, _ = KINDS[kind]
    assert CHANGES[kind].keys() == keys.used | keys.layers
    asked = set()
    get = ConfigReader.get
    monkeypatch.setattr(ConfigReader, "get", lambda self, key, *rest: asked.add(key) or get(self, key, *rest))
    drafts(write(tmp_path, kind))
    known = keys.used | keys.layers | keys.inert.keys() | {NESTED_LAYERS, keys.section, "architectures"}
    assert asked <= known | ({"proposal_methods", "speculative_tokens"} if kind == "peagle" else set())


@every_kind
def test_keys_without_effect_have_none(tmp_path, kind):
    keys, _ = KINDS[kind]
    folder = write(tmp_path, kind)
    before = drafts(folder)
    harmless = {*HARMLESS, *keys.harmless, "image_token_id", "eos_token_id"} - {"architectures", *keys.used}
    neutral = {key: supported[0] for key, supported in keys.inert.items()}
    for section in ("", NESTED_LAYERS, keys.section):
        edit_config(folder, section, **dict.fromkeys(harmless, "anything"), **neutral, wobble=None)
        assert not differ(before, drafts(folder))


def test_a_null_leaves_the_key_to_the_top(tmp_path):
    before = drafts(write(tmp_path, "dflash", output_multiplier=0.5))
    edit_config(tmp_path, "dflash_config", output_multiplier=None)
    assert not differ(before, drafts(tmp_path))


@every_kind
def test_settings_that_are_not_served_are_refused_by_name(tmp_path, kind):
    keys, _ = KINDS[kind]
    for key in keys.inert:
        for section in ("", NESTED_LAYERS, keys.section):
            edit_config(write(tmp_path, kind), section, **{key: "another"})
            with pytest.raises(CheckpointError, match=f"{key} must be .* to be supported, got 'another'"):
                drafts(tmp_path)


@every_kind
def test_unknown_keys_are_refused_by_name(tmp_path, kind):
    keys, _ = KINDS[kind]
    for section in ("", NESTED_LAYERS, keys.section):
        edit_config(write(tmp_path, kind), section, wobble=0.5)
        name = f"{section}.wobble" if section else "wobble"
        with pytest.raises(CheckpointError, match=f"not known for {keys.name} heads: {name}. Without"):
            drafts(tmp_path)
    edit_config(write(tmp_path, kind), "", rms_norm_eps=0.1)  # Known, and not read there.
    with pytest.raises(CheckpointError, match="heads: rms_norm_eps"):
        drafts(tmp_path)


ORIGINAL = {"original_max_position_embeddings": 64}
ROPE = {
    "linear": {"factor": 3.0},
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0} | ORIGINAL,
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 4096, "mscale": 0.7, "mscale_all_dim": 0.9},
}
OTHER = {"attention_factor": 1.5, "beta_fast": 9.0, "beta_slow": 0.3, "truncate": False}


@pytest.mark.parametrize("kind", ROPE_TYPES)
def test_every_rope_setting_is_read_or_refused(tmp_path, kind):
    made = {"rope_type": kind, "rope_theta": 10000.0, **ROPE.get(kind, {})}

    def rotation(**changes):
        rotary = Rotary(16, made | changes, 256)
        return torch.cat(list(rotary(torch.arange(9)[None], torch.float64)), -1)

    for key in ROPE_TYPES[kind]:
        assert not torch.equal(rotation(), rotation(**{key: OTHER.get(key, made.get(key, 1.0) * 1.7)})), key
    known = {*ROPE_TYPES[kind], "original_max_position_embeddings"}
    for key in {*OTHER, "factor", "llama_4_scaling_beta"} - known:
        write(tmp_path, "eagle3", rope_parameters=made | {key: 2.0})
        with pytest.raises(CheckpointError, match=f"{key} of rope type '{kind}'"):
            drafts(tmp_path)


def test_m_rope_is_plain_in_texts(tmp_path):
    before = drafts(write(tmp_path / "plain", "eagle3"))
    for name in ("mrope", "default"):
        rope = {"type": name, "mrope_section": [1, 1, 1], "mrope_interleaved": True}
        assert not differ(before, drafts(write(tmp_path / name, "eagle3", rope_scaling=rope)))


def test_absent_keys_have_vllms_defaults(tmp_path):
    for format_name, expected in ((SPECULATORS, True), (eagle3_files.SAFEAILAB, False)):
        write_head(tmp_path, KINDS["eagle3"][1], format_name)
        if format_name == SPECULATORS:
            edit_config(tmp_path, norm_before_residual=None)
        head = build_head(read_checkpoint(tmp_path), EMBEDDING, EMBEDDING)
        assert head.config.has_norm_before_residual is expected
    anchored = {(SPECULATORS, 5): False, (AUTHORS, 5): True, (SPECULATORS, 0): False, (AUTHORS, 0): False}
    for (format_name, rank), expected in anchored.items():
        made = dflash_files.shape(rank=rank, draft_vocab=64, llama={"layer_types": [SLIDING] * 2, "sliding_window": 2})
        write_head(tmp_path, made, format_name)
        edit_config(tmp_path, sample_from_anchor=None, sliding_window_non_causal=None)
        head = build_head(read_checkpoint(tmp_path), EMBEDDING, EMBEDDING)
        assert head.config.has_anchor_output is expected
        is_dflash_of_speculators = format_name == SPECULATORS and rank == 0
        assert {span.is_causal for span in head.config.spans} == {not is_dflash_of_speculators}


@pytest.mark.parametrize("name", SERVED)
def test_published_configurations_are_known(tmp_path, name):
    keys, values = SERVED[name]
    keys.check(ConfigReader(tmp_path, values))


@pytest.mark.parametrize("name", UNSERVED)
def test_published_kinds_that_are_not_served_are_named(tmp_path, name):
    values, tensors, message = UNSERVED[name]
    with pytest.raises(CheckpointError, match=f"holds {message}"):
        refuse_unserved(tmp_path, values, tensors)


def test_no_served_configuration_is_taken_for_one_that_is_not(tmp_path):
    for _, values in SERVED.values():
        refuse_unserved(tmp_path, values)
    write_head(tmp_path, KINDS["dflash"][1])
    edit_tensors(tmp_path, layers__0__mlp__up_proj__weight_scale=torch.ones(1))
    with pytest.raises(CheckpointError, match="holds quantised weights"):
        read_checkpoint(tmp_path)
    edit_config(tmp_path, quantization_config={"quant_method": "fp8"})
    with pytest.raises(CheckpointError, match=r"holds quantised weights \(quantization_config\)"):
        read_checkpoint(tmp_path)
