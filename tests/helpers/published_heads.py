"""The keys of heads that people have published, as in their config.json, with sizes where they matter."""

from treespec.heads.dflash import files as dflash
from treespec.heads.eagle3 import files as eagle3
from treespec.heads.medusa import files as medusa

LAYERS = {
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 2048,
    "num_attention_heads": 32,
    "num_hidden_layers": 1,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "vocab_size": 128256,
}
TOP = {
    "architectures": ["LlamaForCausalLM"],
    "bos_token_id": 128000,
    "eos_token_id": [128001, 128009],
    "initializer_range": 0.02,
    "model_type": "llama",
    "pad_token_id": 0,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "transformers_version": "4.28.1",
    "use_cache": True,
}
QWEN3 = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
    "dtype": "bfloat16",
    "head_dim": 128,
    "layer_types": ["full_attention"] * 5,
    "max_window_layers": 5,
    "num_target_layers": 36,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "use_sliding_window": False,
}
SPECULATORS = {
    "architectures": ["Eagle3Speculator"],
    "auto_map": {"": "config.Eagle3SpeculatorConfig"},
    "base_model_ep_plan": None,
    "draft_vocab_size": 32000,
    "dtype": "bfloat16",
    "has_no_defaults_at_init": False,
    "speculators_config": {"algorithm": "eagle3", "proposal_methods": [], "verifier": {}},
    "speculators_version": "0.9.0",
    "target_hidden_size": None,
    "tie_word_embeddings": False,
    "transformer_layer_config": LAYERS
    | {"attention_bias": False, "mlp_bias": False, "model_type": "llama", "pretraining_tp": 1, "use_cache": True}
    | {"rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"}},
    "transformers_version": "5.5.3",
}
# What a PretrainedConfig of transformers 4 writes when it is dumped whole.
DUMPED = {
    "_name_or_path": "",
    "add_cross_attention": False,
    "bad_words_ids": None,
    "chunk_size_feed_forward": 0,
    "diversity_penalty": 0.0,
    "do_sample": False,
    "id2label": {"0": "LABEL_0"},
    "is_decoder": False,
    "length_penalty": 1.0,
    "max_length": 20,
    "num_beams": 1,
    "output_scores": False,
    "pruned_heads": {},
    "return_dict": True,
    "temperature": 1.0,
    "top_k": 50,
    "torchscript": False,
    "typical_p": 1.0,
    "use_bfloat16": False,
}
AUX = {"eagle_aux_hidden_state_layer_ids": [1, 17, 33]}
DSPARK = {
    "confidence_head_with_markov": True,
    "enable_confidence_head": True,
    "markov_head_type": "vanilla",
    "markov_rank": 256,
}
BLOCK = {"mask_token_id": 151669, "target_layer_ids": [1, 9, 17, 25, 33]}
NEMOTRON = {
    "attention_sink_bias": False,
    "dflash_config": BLOCK
    | {"attention_sink_bias": False, "causal": False, "sample_from_anchor": False, "use_swa": False},
    "dflash_query_causal": False,
    "draft_vocab_size": None,
    "dspark_fixup_head_type": None,
    "dspark_markov_rank": None,
    "eagle_aux_hidden_state_layer_ids": [2, 6, 20, 30, 42, 52],
    "has_embed_tokens": True,
    "has_lm_head": False,
    "mask_token_id": 990,
    "num_aux_layers": 6,
    "pard_token": 990,
    "rope_parameters": {
        "factor": 128.0,
        "original_max_position_embeddings": 8192,
        "rope_theta": 10000,
        "rope_type": "yarn",
    },
    "sample_from_anchor": False,
    "target_layer_ids": [1, 5, 19, 29, 41, 51],
    "train_embed_tokens": False,
}
SINKS = {"attention_sink_bias": True, "swa_window_size": 1024, "use_swa": True}

SERVED = {
    "SafeAILab's for Llama 3.1": (eagle3.KEYS, TOP | LAYERS | {"draft_vocab_size": 32000}),
    "SpecForge's for Qwen2.5-VL": (
        eagle3.KEYS,
        TOP
        | LAYERS
        | {"draft_vocab_size": 32000, "pretraining_tp": 1, "target_model_type": "qwen2_5_vl"}
        | {"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}, "sliding_window": 32768}
        | {"use_sliding_window": False, "max_window_layers": 28},
    ),
    "SpecForge's for DeepSeek-V3": (
        eagle3.KEYS,
        TOP
        | LAYERS
        | {"eagle_config": AUX | {"use_aux_hidden_state": True}, "rope_theta": 10000}
        | {
            "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40.0, "mscale": 0.7, "mscale_all_dim": 0.7}
            | {"original_max_position_embeddings": 4096, "rope_type": "yarn"}
        },
    ),
    "EAGLE-3.1 of SpecForge": (
        eagle3.KEYS,
        TOP | LAYERS | {"decoder_sparse_step": 1, "fc_norm": True, "norm_output": True},
    ),
    "NVIDIA's for gpt-oss": (
        eagle3.KEYS,
        TOP
        | LAYERS
        | {"attention_bias": False, "attention_dropout": 0.0, "mlp_bias": False, "parallel_draft_step": 1}
        | {
            "eagle_config": AUX
            | {"use_aux_hidden_state": True, "use_input_layernorm_in_first_layer": True}
            | {"use_last_layernorm": True, "use_mtp_layernorm": False}
        }
        | {
            "rope_scaling": {"factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0}
            | {"original_max_position_embeddings": 8192, "rope_type": "llama3"}
        },
    ),
    "AngelSlim's for Hunyuan": (
        eagle3.KEYS,
        TOP
        | LAYERS
        | {"add_classification_head": False, "attention_head_dim": 128, "cla_share_factor": 2, "class_num": 0}
        | {"dense_list": [4096, 0], "eod_token_id": 5, "head_dim": 128, "im_start_id": 4, "mask_init_id": 12}
        | {"norm_type": "rms", "org_vocab_size": 128167, "pad_id": 127961, "pool_type": "last", "text_end_id": 7}
        | {"use_cla": False, "use_qk_norm": True, "use_rotary_pos_emb": True, "draft_vocab_size": 32000},
    ),
    "AngelSlim's for Qwen3-VL": (
        eagle3.KEYS,
        TOP
        | LAYERS
        | {"image_token_id": 151655, "vision_start_token_id": 151652, "modal_type": "VLM", "draft_vocab_size": 32000}
        | {
            "rope_scaling": {"type": "default", "rope_type": "default", "mrope_interleaved": True}
            | {"mrope_section": [24, 20, 20]}
        },
    ),
    "AngelSlim's DFlash": (
        dflash.KEYS,
        TOP
        | LAYERS
        | QWEN3
        | {"block_size": 16, "dflash_config": BLOCK, "num_anchors": 512, "loss_decay_gamma": 7.0}
        | {"attention_backend": "flex_attention"},
    ),
    "Nebius' for gpt-oss": (eagle3.KEYS, TOP | LAYERS | {"truncated_vocab_size": 32000}),
    "speculators' EAGLE-3": (
        eagle3.KEYS,
        SPECULATORS
        | AUX
        | DUMPED
        | {"embed_requires_grad": False, "fc_norm": False, "norm_before_fc": True, "norm_before_residual": True}
        | {"norm_output": False, "speculators_model_type": "eagle3"},
    ),
    "z-lab's for Qwen3-4B": (dflash.KEYS, TOP | LAYERS | QWEN3 | {"block_size": 16, "dflash_config": BLOCK}),
    "z-lab's for Qwen3.5-35B": (
        dflash.KEYS,
        TOP
        | LAYERS
        | QWEN3
        | {"layer_types": ["sliding_attention"] * 4 + ["full_attention"], "sliding_window": 4096}
        | {"dflash_config": BLOCK | {"block_size": 16}, "use_sliding_window": True},
    ),
    "DeepSeek's DSpark for Qwen3-8B": (
        dflash.KEYS,
        TOP | LAYERS | QWEN3 | BLOCK | DSPARK | {"block_size": 7, "num_anchors": 512, "target_model_type": "qwen3"},
    ),
    "SpecForge's DSpark": (
        dflash.KEYS,
        TOP
        | LAYERS
        | QWEN3
        | {"block_size": 7, "target_hidden_size": None}
        | {
            "dflash_config": BLOCK
            | DSPARK
            | {"attention_mode": "gqa", "confidence_head_alpha": 1.0, "projector_type": "dspark"}
        },
    ),
    "speculators' DFlash": (
        dflash.KEYS,
        SPECULATORS
        | {"aux_hidden_state_layer_ids": [2, 10, 18], "block_size": 8, "mask_token_id": 1, "max_anchors": 3072}
        | {"sample_from_anchor": False, "sliding_window_non_causal": False, "speculators_model_type": "dflash"},
    ),
    "speculators' DSpark": (
        dflash.KEYS,
        SPECULATORS
        | DSPARK
        | {"aux_hidden_state_layer_ids": [2, 10, 18], "block_size": 8, "mask_token_id": 1}
        | {"sample_from_anchor": True, "sliding_window_non_causal": False, "speculators_model_type": "dspark"},
    ),
    "NVIDIA's DFlash for Nemotron 3.5": (dflash.KEYS, TOP | LAYERS | QWEN3 | NEMOTRON | {"block_size": 8}),
    "Medusa's for Vicuna": (
        medusa.KEYS,
        {"base_model_name_or_path": "lmsys/vicuna-7b-v1.3", "medusa_num_heads": 2, "medusa_num_layers": 1}
        | {"transformers_version": "4.31.0", "version": "2", "hidden_size": 4096, "vocab_size": 32000},
    ),
}
REFUSED = {
    "Xiaomi's DFlash for MiMo-V2.5": (
        dflash.KEYS,
        TOP
        | LAYERS
        | {"block_size": 8, "partial_rotary_factor": 0.5, "v_head_dim": 128}
        | {"dflash_config": BLOCK | SINKS | {"attention_value_scale": 0.612, "num_anchors": 4096}},
        "attention_sink_bias must be False",
    ),
    "NVIDIA's DSpark for Nemotron 3.5": (
        dflash.KEYS,
        TOP | LAYERS | QWEN3 | NEMOTRON | DSPARK | SINKS | {"dspark_markov_rank": 512, "dspark_bonus_anchor": True},
        "attention_sink_bias must be False",
    ),
    "z-lab's DFlash 2 for Qwen3.8": (
        dflash.KEYS,
        TOP
        | LAYERS
        | QWEN3
        | {"is_causal": False}
        | {"dflash_config": BLOCK | {"conv_group_size": 16, "conv_kernel_size": 2, "selector_rank": 256}},
        r"dflash_config\.conv_group_size, dflash_config\.conv_kernel_size, dflash_config\.selector_rank",
    ),
    "DeepSeek's DSpark for Gemma 4": (
        dflash.KEYS,
        TOP | LAYERS | BLOCK | DSPARK | {"hidden_act": None, "hidden_activation": "gelu_pytorch_tanh"},
        "hidden_activation must be 'silu'",
    ),
    "SpecForge's Domino": (
        dflash.KEYS,
        TOP | LAYERS | QWEN3 | {"dflash_config": BLOCK | {"emb_dim": 256, "projector_type": "domino"}},
        "projector_type must be 'dflash' or 'dspark'",
    ),
    "a parallel EAGLE-3": (
        eagle3.KEYS,
        TOP | LAYERS | {"parallel_drafting": True, "pard_token": 5},
        "parallel_drafting must be False",
    ),
}
