"""The keys of heads that people have published, as in their config.json, with the values that are checked."""

from treespec.heads.dflash.files import KEYS as DFLASH
from treespec.heads.eagle.files import KEYS as EAGLE
from treespec.heads.eagle3.files import KEYS as EAGLE3
from treespec.heads.medusa.files import KEYS as MEDUSA
from treespec.heads.peagle.files import KEYS as PEAGLE


def given(text, *parts, **values):
    """Keys whose values do not matter here, those of other parts, and keys with their values."""
    found = dict.fromkeys(text.split(), 1)
    for part in parts:
        found |= part
    return found | values


LAYERS = given(
    "hidden_size intermediate_size max_position_embeddings num_attention_heads num_hidden_layers num_key_value_heads "
    "rms_norm_eps vocab_size architectures bos_token_id eos_token_id initializer_range model_type pad_token_id "
    "tie_word_embeddings torch_dtype transformers_version use_cache",
    hidden_act="silu",
)
QWEN3 = given(
    "attention_bias attention_dropout auto_map dtype head_dim layer_types max_window_layers num_target_layers "
    "rope_theta use_sliding_window",
    LAYERS,
    rope_scaling=None,
    sliding_window=None,
)
NESTED = given(
    "attention_bias mlp_bias pretraining_tp hidden_size intermediate_size num_attention_heads num_hidden_layers "
    "num_key_value_heads max_position_embeddings rms_norm_eps vocab_size model_type use_cache",
    hidden_act="silu",
    rope_parameters={"rope_theta": 500000.0, "rope_type": "default"},
)
SPECULATORS = given(
    "architectures auto_map draft_vocab_size dtype has_no_defaults_at_init speculators_config speculators_version "
    "tie_word_embeddings transformers_version",
    base_model_ep_plan=None,
    target_hidden_size=None,
    transformer_layer_config=NESTED,
)
# Keys that a PretrainedConfig of transformers 4 writes when it is dumped whole.
DUMPED = given(
    "_name_or_path add_cross_attention chunk_size_feed_forward diversity_penalty do_sample id2label is_decoder "
    "length_penalty max_length num_beams output_scores pruned_heads return_dict temperature top_k torchscript "
    "typical_p use_bfloat16",
    bad_words_ids=None,
)
AUX = given("eagle_aux_hidden_state_layer_ids", use_aux_hidden_state=True)
BLOCK = given("mask_token_id target_layer_ids")
DSPARK = given("confidence_head_with_markov enable_confidence_head markov_rank", markov_head_type="vanilla")
LAST = given("", use_input_layernorm_in_first_layer=True, use_last_layernorm=True, use_mtp_layernorm=False)
SINKS = given("swa_window_size use_swa", attention_sink_bias=True)
NEMOTRON = given(
    "dflash_query_causal eagle_aux_hidden_state_layer_ids has_embed_tokens has_lm_head mask_token_id num_aux_layers "
    "pard_token sample_from_anchor target_layer_ids train_embed_tokens",
    QWEN3,
    attention_sink_bias=False,
    dflash_config=given("causal sample_from_anchor use_swa", BLOCK, attention_sink_bias=False),
    draft_vocab_size=None,
    dspark_fixup_head_type=None,
    dspark_markov_rank=None,
    rope_parameters={"factor": 128.0, "original_max_position_embeddings": 8192, "rope_type": "yarn", "rope_theta": 1e4},
)
MROPE = {"type": "mrope", "mrope_section": [16, 24, 24]}
MROPE_3 = {"type": "default", "rope_type": "default", "mrope_interleaved": True, "mrope_section": [24, 20, 20]}
YARN = given("beta_fast beta_slow factor mscale mscale_all_dim original_max_position_embeddings", rope_type="yarn")
LLAMA3 = given("factor high_freq_factor low_freq_factor original_max_position_embeddings", rope_type="llama3")
HUNYUAN = given(
    "add_classification_head attention_head_dim cla_share_factor class_num dense_list eod_token_id head_dim "
    "im_start_id mask_init_id org_vocab_size pad_id pool_type text_end_id use_qk_norm draft_vocab_size",
    norm_type="rms",
    use_cla=False,
    use_rotary_pos_emb=True,
)
SPECFORGE = given("confidence_head_alpha", BLOCK, DSPARK, attention_mode="gqa", projector_type="dspark")
TRAINED = "aux_hidden_state_layer_ids block_size mask_token_id sample_from_anchor sliding_window_non_causal"

SELECTOR = given("block_size conv_group_size conv_kernel_size selector_rank selector_top_k", BLOCK)

# Those whose keys all are here already are left out.
SERVED = {
    "SafeAILab's EAGLE for Llama 3": (EAGLE, given("bias rope_theta", LAYERS)),
    "a P-EAGLE in vLLM's words": (PEAGLE, given("draft_vocab_size ptd_token_id", LAYERS, parallel_drafting=True)),
    "SpecForge's for Qwen2.5-VL": (
        EAGLE3,
        given(
            "draft_vocab_size pretraining_tp target_model_type sliding_window use_sliding_window max_window_layers",
            LAYERS,
            rope_scaling=MROPE,
        ),
    ),
    "SpecForge's for DeepSeek-V3": (EAGLE3, given("rope_theta", LAYERS, eagle_config=AUX, rope_scaling=YARN)),
    "EAGLE-3.1 of SpecForge": (EAGLE3, given("decoder_sparse_step fc_norm norm_output", LAYERS)),
    "NVIDIA's for gpt-oss": (
        EAGLE3,
        given(
            "attention_bias attention_dropout mlp_bias parallel_draft_step",
            LAYERS,
            eagle_config=AUX | LAST,
            rope_scaling=LLAMA3,
        ),
    ),
    "AngelSlim's for Hunyuan": (EAGLE3, LAYERS | HUNYUAN),
    "AngelSlim's for Qwen3-VL": (
        EAGLE3,
        given(
            "image_token_id vision_start_token_id modal_type draft_vocab_size rope_theta", LAYERS, rope_scaling=MROPE_3
        ),
    ),
    "AngelSlim's DFlash": (
        DFLASH,
        given("block_size num_anchors loss_decay_gamma attention_backend", QWEN3, dflash_config=BLOCK),
    ),
    "speculators' EAGLE-3": (
        EAGLE3,
        given(
            "eagle_aux_hidden_state_layer_ids embed_requires_grad fc_norm norm_before_fc norm_before_residual "
            "norm_output speculators_model_type",
            SPECULATORS,
            DUMPED,
        ),
    ),
    "SpecForge's DSpark": (DFLASH, given("block_size", QWEN3, target_hidden_size=None, dflash_config=SPECFORGE)),
    "speculators' DFlash": (DFLASH, given(TRAINED, SPECULATORS, given("max_anchors speculators_model_type"))),
    "Medusa's for Vicuna": (
        MEDUSA,
        given(
            "base_model_name_or_path medusa_num_heads medusa_num_layers transformers_version version hidden_size "
            "vocab_size"
        ),
    ),
    "Xiaomi's DFlash for MiMo-V2.5": (
        DFLASH,
        given(
            "block_size partial_rotary_factor v_head_dim",
            LAYERS,
            dflash_config=given("attention_value_scale num_anchors", BLOCK, SINKS),
        ),
    ),
    "NVIDIA's DSpark for Nemotron 3.5": (
        DFLASH,
        given("block_size dspark_markov_rank dspark_bonus_anchor", NEMOTRON, DSPARK, SINKS),
    ),
    "z-lab's DFlash 2 for Muse Glimmer": (
        DFLASH,
        given(
            "",
            QWEN3,
            is_causal=False,
            dflash_config=given("final_logit_softcapping input_embedding_scale output_multiplier", SELECTOR),
        ),
    ),
}
UNSERVED = {
    "RedHat's FP8 EAGLE-3": (
        given("draft_vocab_size", LAYERS, quantization_config={"quant_method": "compressed-tensors"}),
        (),
        r"quantised weights \(quantization_config\).*bfloat16",
    ),
    "packed weights without a word": (LAYERS, ("layers.0.mlp.up_proj.weight_packed",), r"quantised weights \(layers"),
    "Kimi's EAGLE-3": (
        given("kv_lora_rank q_lora_rank", LAYERS),
        (),
        r"attention over a latent .*\(kv_lora_rank\).*mtp",
    ),
    "MLA by its tensors": (LAYERS, ("midlayer.self_attn.kv_b_proj.weight",), r"attention over a latent .*\(midlayer"),
    "Hydra's for Vicuna": (given("hydra_num_heads hydra_num_layers"), (), "a Hydra head"),
    "IBM's accelerator": (
        given("emb_dim inner_dim", model_type="mlp_speculator", architectures=["MLPSpeculatorPreTrainedModel"]),
        (),
        "an MLPSpeculator",
    ),
    "NVIDIA's LiLiCorr": (
        given("", QWEN3, dflash_config=given("lilicorr_candidate_topk lilicorr_factor_dim", BLOCK)),
        (),
        "LiLiCorr's candidate lattice",
    ),
    "speculators' XPress": (
        given("xpress_rank xpress_mlp_ratio num_jacobi_passes", SPECULATORS, architectures=["XPressDraftModel"]),
        (),
        "XPress' refiner",
    ),
    "SpecForge's Domino": (
        given("emb_dim", QWEN3, dflash_config=given("emb_dim gru_hidden_dim", BLOCK, projector_type="domino")),
        (),
        "Domino's recurrent projector",
    ),
    "a recurrent DSpark": (given("", QWEN3, BLOCK, DSPARK, markov_head_type="rnn"), (), "a recurrent Markov head"),
    "DeepSeek's DSpark for Gemma 4": (
        given("", LAYERS, BLOCK, DSPARK, architectures=["Gemma4DSparkModel"], hidden_activation="gelu_pytorch_tanh"),
        (),
        "Gemma 4's own layers",
    ),
    "DeepSeek-V4's DSpark": (given("dspark_noise_token_id", LAYERS), (), "DeepSeek-V4's DSpark layers"),
    "speculators' MMuse": (given("", SPECULATORS, speculators_model_type="mmuse"), (), "an MMuse head"),
}
