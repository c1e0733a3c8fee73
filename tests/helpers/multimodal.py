"""Tiny random multimodal models, built from configuration classes alone, and prompts with images or sounds for them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from helpers.zoo import MIN_LOGIT_STD, SIZES, VOCAB_SIZE, WINDOW
from torch import nn
from transformers import AutoConfig, AutoModel, AutoModelForMultimodalLM, Gemma3nVisionConfig, PreTrainedModel

START, END, MEDIA, VIDEO, OTHER = 90, 91, 92, 93, 94

_TOWER: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
_TOWER["initializer_range"] = 0.2
_PIXELS: dict[str, Any] = {"image_size": 8, "patch_size": 4}


def _noise(*shape: int, seed: int = 5) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@dataclass(frozen=True)
class Multimodal:
    """One architecture.

    Attributes:
        model_type: transformers' name.
        text: what the text part's configuration needs besides the common sizes, its type included.
        vision: that of the tower, which may be for sounds.
        options: of the whole configuration.
        features: (number of images in all rows) to the arguments of `generate` that hold them.
        token_types: the name of the argument that says for every token of the prompt whether it is an image.
        tower: the tower's name in the configuration.
        can_batch: several images in one call; transformers 5.23 loses their sizes for phi4_multimodal.
        num_tokens: how many placeholders an image or a sound has.
    """

    model_type: str
    text: Mapping[str, Any] | None
    vision: Mapping[str, Any]
    options: Mapping[str, Any]
    features: Callable[[int], dict[str, torch.Tensor]] = lambda count: {"pixel_values": _noise(count, 3, 8, 8)}
    token_types: str = ""
    tower: str = "vision_config"
    can_batch: bool = True
    num_tokens: int = 4

    def __str__(self) -> str:
        return self.model_type


def _patches(count: int) -> dict[str, torch.Tensor]:
    """Images of 4 x 4 patches, as Qwen's processors cut them."""
    return {"pixel_values": _noise(count * 16, 48), "image_grid_thw": torch.tensor([[1, 4, 4]]).expand(count, -1)}


def _large(count: int) -> dict[str, torch.Tensor]:
    return {"pixel_values": _noise(count, 3, 16, 16)}


def _qwen(model_type: str, text: dict[str, Any], **vision: Any) -> Multimodal:
    """A model with Qwen's tower, patches and M-RoPE."""
    return Multimodal(model_type, text | _MROPE, _QWEN_TOWER | vision, _QWEN_IDS, _patches, "mm_token_type_ids")


_MROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}}
_QWEN_IDS = {"image_token_id": MEDIA, "video_token_id": VIDEO}
_QWEN_IDS |= {"vision_start_token_id": START, "vision_end_token_id": END}
_QWEN_TOWER = {"depth": 2, "num_heads": 2, "patch_size": 4, "temporal_patch_size": 1, "spatial_merge_size": 2}
_QWEN_TOWER |= {"initializer_range": 0.2}
_WIDE = {"hidden_size": 16, "intermediate_size": 24, "out_hidden_size": 32}
_CLIP = _TOWER | _PIXELS | {"model_type": "clip_vision_model", "projection_dim": 16}
_SIGLIP = _TOWER | _PIXELS | {"model_type": "siglip_vision_model", "vision_use_head": False}
_MIXED = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"], "head_dim": 8}
_GEMMA_N = _MIXED | {"vocab_size_per_layer_input": 88, "hidden_size_per_layer_input": 8, "num_hidden_layers": 4}
_GEMMA_N |= {"layer_types": _MIXED["layer_types"] * 2, "num_kv_shared_layers": 2}
_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size_mlp": 48, "head_dim": 8}
_EXPERTS |= {"attention_chunk_size": WINDOW, "layer_types": ["chunked_attention", "full_attention"]}
_AUDIO = {"num_blocks": 1, "num_attention_heads": 2, "ext_pw_out_channel": 16, "depthwise_separable_out_channel": 16}
_AUDIO |= {"hidden_size": 16, "intermediate_size": 24, "nemo_conv_channels": 16, "input_size": 16}

KINDS: tuple[Multimodal, ...] = (
    _qwen("qwen2_vl", {}, embed_dim=16, hidden_size=32),
    _qwen("qwen2_5_vl", {}, **_WIDE, window_size=16, fullatt_block_indexes=[1]),
    _qwen("qwen3_vl", {"head_dim": 8}, **_WIDE, num_position_embeddings=16, deepstack_visual_indexes=[0, 1]),
    Multimodal("llava", {"model_type": "llama"}, _CLIP, {"image_token_index": MEDIA, "image_seq_length": 4}),
    Multimodal(
        "llava_next",
        {"model_type": "mistral", "sliding_window": WINDOW},
        _CLIP,
        {"image_token_index": MEDIA, "image_grid_pinpoints": [[8, 16], [16, 8]]},
        lambda count: {"pixel_values": _noise(count, 3, 3, 8, 8), "image_sizes": torch.tensor([[8, 16]] * count)},
        num_tokens=14,
    ),
    Multimodal(
        "gemma3",
        _MIXED | {"query_pre_attn_scalar": 8},
        _SIGLIP,
        {"image_token_index": MEDIA, "boi_token_index": START, "eoi_token_index": END, "mm_tokens_per_image": 4},
        token_types="token_type_ids",
    ),
    Multimodal(
        "paligemma",
        {"model_type": "gemma", "head_dim": 8},
        _SIGLIP | {"projection_dim": 32},
        {"image_token_index": VOCAB_SIZE, "projection_dim": 32, "hidden_size": 32, "vocab_size": VOCAB_SIZE},
        token_types="token_type_ids",
    ),
    Multimodal(
        "mistral3",
        {"model_type": "mistral", "sliding_window": None, "head_dim": 8},
        _TOWER | {"model_type": "pixtral", "head_dim": 8, "image_size": 16, "patch_size": 4},
        {"image_token_index": MEDIA, "spatial_merge_size": 2},
        lambda count: {"pixel_values": _noise(count, 3, 16, 16), "image_sizes": torch.tensor([[16, 16]] * count)},
    ),
    Multimodal(
        "llama4",
        _EXPERTS | {"no_rope_layers": [1, 0]},
        _TOWER
        | {"image_size": 16, "patch_size": 4, "vision_output_dim": 32, "projector_input_dim": 32}
        | {"projector_output_dim": 32, "intermediate_size": 64},
        {"image_token_index": MEDIA, "boi_token_index": START, "eoi_token_index": END},
        _large,
    ),
    *(
        Multimodal(
            name,
            {"model_type": "llama"},
            _TOWER | {"image_size": 16, "patch_size": 4},
            {"image_token_id": MEDIA, "scale_factor": 2},
            lambda count: {"pixel_values": _noise(1, count, 3, 16, 16)},
        )
        for name in ("idefics3", "smolvlm")
    ),
    Multimodal(
        "internvl",
        {"model_type": "qwen2"},
        _TOWER | {"image_size": [16, 16], "patch_size": [4, 4]},
        {"image_token_id": MEDIA, "image_seq_length": 4},
        _large,
    ),
    Multimodal(
        "aya_vision",
        {"model_type": "cohere2", "logit_scale": 1.0, **_MIXED},
        _SIGLIP | {"image_size": 16},
        {"image_token_index": MEDIA},
        _large,
    ),
    Multimodal(
        "qwen2_audio",
        {"model_type": "qwen2"},
        {"model_type": "qwen2_audio_encoder", "d_model": 16, "encoder_layers": 1, "encoder_attention_heads": 2}
        | {"encoder_ffn_dim": 24, "num_mel_bins": 8, "max_source_positions": 8},
        {"audio_token_index": MEDIA},
        lambda count: {
            "input_features": _noise(count, 8, 16),
            "feature_attention_mask": torch.ones(count, 16, dtype=torch.long),
        },
        tower="audio_config",
    ),
    Multimodal(
        "ovis2",
        {"model_type": "qwen2"},
        _TOWER | _PIXELS | {"vocab_size": 32, "num_visual_indicator_tokens": 5},
        {"image_token_id": MEDIA, "visual_indicator_token_ids": [83, 84, 85, 86, 87], "hidden_size": 32}
        | {"vocab_size": VOCAB_SIZE},
    ),
    Multimodal(
        "phi4_multimodal",
        None,
        _TOWER | {"image_size": 16, "crop_size": 16, "patch_size": 4, "image_token_id": MEDIA},
        SIZES | {"audio_config": _AUDIO | {"audio_token_id": OTHER}, "original_max_position_embeddings": 256},
        lambda count: {
            "image_pixel_values": _noise(count, 2, 3, 16, 16),
            "image_sizes": torch.tensor([[16, 16]] * count),
            "image_attention_mask": torch.ones(count, 2, 4, 4, dtype=torch.bool),
        },
        can_batch=False,
        num_tokens=13,
    ),
    Multimodal(
        "gemma4",
        _GEMMA_N
        | {"global_head_dim": 8, "use_bidirectional_attention": "vision", "vocab_size_per_layer_input": VOCAB_SIZE},
        _TOWER
        | {"num_key_value_heads": 2, "head_dim": 8, "pooling_kernel_size": 2, "patch_size": 4}
        | {"position_embedding_size": 16},
        {"image_token_id": MEDIA, "boi_token_id": START, "eoi_token_id": END, "video_token_id": VIDEO}
        | {"audio_token_id": OTHER, "audio_config": None},
        lambda count: {
            "pixel_values": _noise(count, 16, 48),
            "image_position_ids": torch.cartesian_prod(torch.arange(4), torch.arange(4)).expand(count, -1, -1),
        },
        "mm_token_type_ids",
    ),
    Multimodal(
        "gemma3n",
        _GEMMA_N | {"laurel_rank": 8, "intermediate_size": [48] * 4, "activation_sparsity_pattern": [0.0] * 4},
        {
            "hidden_size": 16,
            "conf_num_hidden_layers": 1,
            "conf_num_attention_heads": 2,
            "sscp_conv_channel_size": [4, 4],
        }
        | {"input_feat_size": 16, "conf_attention_chunk_size": 4, "conf_attention_context_left": 5}
        | {"vocab_offset": OTHER, "vocab_size": 2},
        {"audio_token_id": MEDIA, "audio_soft_tokens_per_image": 4, "boa_token_id": START, "eoa_token_id": END}
        | {"image_token_id": VIDEO, "boi_token_id": 88, "eoi_token_id": 89}
        | {"vision_config": {"hidden_size": 16, "vocab_offset": OTHER, "vocab_size": 2}},
        lambda count: {
            "input_features": _noise(count, 64, 16),
            "input_features_mask": torch.ones(count, 64, dtype=torch.bool),
        },
        tower="audio_config",
    ),
    Multimodal(
        "glm4v",
        _MROPE,
        _QWEN_TOWER | _WIDE | {"image_size": 16},
        {"image_token_id": MEDIA, "video_token_id": VIDEO, "image_start_token_id": START, "image_end_token_id": END}
        | {"video_start_token_id": 88, "video_end_token_id": 89},
        _patches,
        "mm_token_type_ids",
    ),
)
_HYBRID = {"head_dim": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8}
_HYBRID |= {"linear_value_head_dim": 8, "layer_types": ["linear_attention", "full_attention"]}
WITH_STATES: tuple[Multimodal, ...] = (
    _qwen("qwen3_5", _HYBRID, **_WIDE, num_position_embeddings=16),
    Multimodal(
        "lfm2_vl",
        {"model_type": "lfm2", "layer_types": ["conv", "full_attention"]},
        _TOWER | {"model_type": "siglip2_vision_model", "num_patches": 16, "patch_size": 4, "vision_use_head": False},
        {"image_token_id": MEDIA, "projector_hidden_size": 32, "downsample_factor": 2},
        lambda count: {
            "pixel_values": _noise(count, 16, 48),
            "spatial_shapes": torch.tensor([[4, 4]] * count),
            "pixel_attention_mask": torch.ones(count, 16, dtype=torch.long),
        },
    ),
)
"""Models whose text part keeps recurrent or convolution states."""
BY_NAME = {kind.model_type: kind for kind in KINDS + WITH_STATES}


def build(kind: Multimodal, attention: str | None = None) -> PreTrainedModel:
    """A tiny model in float32 and evaluation mode, the same at every call; torch's global generator is left alone."""
    options = dict(kind.options) | {kind.tower: dict(kind.vision), "tie_word_embeddings": False}
    if kind.text is not None:
        options["text_config"] = SIZES | dict(kind.text)
    options = deepcopy(options)  # transformers completes the dictionaries that it is given.
    config = AutoConfig.for_model(kind.model_type, **options)
    chosen = attention or "sdpa"
    with torch.random.fork_rng(devices=[]), _without_timm():
        torch.manual_seed(0)
        model = AutoModelForMultimodalLM.from_config(config, attn_implementation=chosen, dtype=torch.float32).eval()
    model.generation_config.pad_token_id = 0
    _sharpen(model)
    return model


def prompts(kind: Multimodal, num_images: Sequence[int], length: int = 12, seed: int = 0) -> dict[str, torch.Tensor]:
    """Arguments of `generate`: one row for each number of images, left-padded; each image is followed by some text."""
    generator = torch.Generator().manual_seed(seed)
    placeholder = VOCAB_SIZE if kind.options.get("image_token_index") == VOCAB_SIZE else MEDIA

    def text(count: int) -> list[int]:
        return torch.randint(3, 83, (count,), generator=generator).tolist()

    rows = []
    for row, count in enumerate(num_images):
        ids = text(length - 2 * row)
        for _ in range(count):
            ids += [START, *[placeholder] * kind.num_tokens, END, *text(3)]
        rows.append(ids)
    width = max(map(len, rows))
    ids = torch.tensor([[0] * (width - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    inputs = {"input_ids": ids, "attention_mask": mask}
    if sum(num_images):
        inputs |= kind.features(sum(num_images))
    if kind.token_types:
        inputs[kind.token_types] = (ids == placeholder).long()
    return inputs


@contextmanager
def _without_timm() -> Iterator[None]:
    """Gemma 3n's tower for images needs another package: it is left out, the one for sounds is there."""
    build, left_out = AutoModel.from_config, Gemma3nVisionConfig
    skip = staticmethod(
        lambda config, **kwargs: nn.Identity() if isinstance(config, left_out) else build(config, **kwargs)
    )
    AutoModel.from_config = skip
    try:
        yield
    finally:
        AutoModel.from_config = build


@torch.no_grad()
def _sharpen(model: PreTrainedModel) -> None:
    """Scale the head so that the logits' standard deviation is at least MIN_LOGIT_STD; no matrix is all zero."""
    for weight in model.parameters():
        if weight.ndim > 1 and not weight.any():
            weight.copy_(0.2 * _noise(*weight.shape))
    ids = torch.randint(3, 83, (2, 24), generator=torch.Generator().manual_seed(0))
    std = model(input_ids=ids, use_cache=False).logits.std()
    model.get_output_embeddings().weight.mul_(MIN_LOGIT_STD / std)
