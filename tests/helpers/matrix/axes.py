"""The axes of the matrix: tiny random models, kinds of weights, prompts, adapters, constraints by name."""

from __future__ import annotations

import string
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForSeq2SeqLM,
    LogitsProcessorList,
)

from treespec.hf import GrammarProcessor

CHARACTERS = string.digits + string.ascii_letters
PAD, IMAGE, END = 62, 63, 64
VOCAB_SIZE = 68
PATTERN = "[a-f]{2,4}[0-9]{3}(x|yz)[A-D]{2,9}"

SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "tie_word_embeddings": False,
    "pad_token_id": PAD,
    "bos_token_id": None,
    "eos_token_id": END,
}
_TOWER = {"model_type": "clip_vision_model", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
_TOWER |= {"num_attention_heads": 2, "image_size": 8, "patch_size": 4, "projection_dim": 32}
_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
_STATES = {"state_size": 8, "use_mambapy": False}

CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", SIZES),
    "sliding windows (mistral)": ("mistral", SIZES | {"sliding_window": 8}),
    "experts (mixtral)": ("mixtral", SIZES | _EXPERTS),
    "states (mamba)": ("mamba", SIZES | _STATES),
    "images (llava)": (
        "llava",
        {
            "vision_config": _TOWER,
            "text_config": SIZES | {"model_type": "llama"},
            "image_token_index": IMAGE,
            "image_seq_length": 4,
            "pad_token_id": PAD,
            "eos_token_id": END,
        },
    ),
    "images, states (lfm2-vl)": (
        "lfm2_vl",
        {
            "vision_config": _TOWER
            | {"model_type": "siglip2_vision_model", "num_patches": 4, "vision_use_head": False},
            "text_config": SIZES | {"model_type": "lfm2", "layer_types": ["conv", "full_attention"]},
            "image_token_id": IMAGE,
            "downsample_factor": 1,
            "projector_hidden_size": 32,
            "pad_token_id": PAD,
            "eos_token_id": END,
        },
    ),
    "encoder-decoder (t5)": (
        "t5",
        {"vocab_size": VOCAB_SIZE, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4}
        | {"pad_token_id": PAD, "decoder_start_token_id": PAD, "eos_token_id": END},
    ),
}


def save_model(name: str, folder: Path) -> None:
    """Write a random model whose choices are mostly no near-ties."""
    kind, options = CONFIGS[name]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config: Any = AutoConfig.for_model(kind, **options)
        model: Any = _auto_class(config).from_config(config)
    model.generation_config.pad_token_id, model.generation_config.eos_token_id = PAD, END
    model.save_pretrained(folder)


def _auto_class(config: Any) -> Any:
    """Which of transformers' classes loads such a model."""
    if config.is_encoder_decoder:
        return AutoModelForSeq2SeqLM
    return AutoModelForImageTextToText if hasattr(config, "vision_config") else AutoModelForCausalLM


def _loaded(folder: Path, dtype: torch.dtype) -> Any:
    return _auto_class(AutoConfig.from_pretrained(folder)).from_pretrained(folder, dtype=dtype).eval()


def _pytorch_int8(folder: Path) -> Any:
    return torch.ao.quantization.quantize_dynamic(_loaded(folder, torch.float32), {nn.Linear}, dtype=torch.qint8)


WEIGHTS: dict[str, Callable[[Path], Any]] = {
    "float32": lambda folder: _loaded(folder, torch.float32),
    "float16": lambda folder: _loaded(folder, torch.float16),
    "bfloat16": lambda folder: _loaded(folder, torch.bfloat16),
    "PyTorch dynamic int8": _pytorch_int8,
}
"""Those of quantising packages, which are not installed for the tests: `tests/hf/models/test_weights.py`."""


def _text(num_rows: int) -> Tensor:
    return torch.randint(len(CHARACTERS), (num_rows, 12), generator=torch.Generator().manual_seed(3))


def _images(model: Any, count: int) -> dict[str, Tensor]:
    """Rows of which the first `count` have an image."""
    ids = _text(2)
    ids[:count, 2:6] = IMAGE
    generator, inputs = torch.Generator().manual_seed(5), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if model.config.model_type == "lfm2_vl":  # It takes patches.
        shapes = {"spatial_shapes": torch.tensor([[2, 2]] * count), "pixel_attention_mask": torch.ones(count, 4).long()}
        return inputs | shapes | {"pixel_values": torch.randn(count, 4, 48, generator=generator).to(model.dtype)}
    return inputs | {"pixel_values": torch.randn(count, 3, 8, 8, generator=generator).to(model.dtype)}


def _padded() -> dict[str, Tensor]:
    ids = _text(3)
    mask = (torch.arange(ids.shape[1]) >= torch.tensor([[0], [4], [7]])).long()
    return {"input_ids": ids.where(mask.bool(), PAD), "attention_mask": mask}


def _embedded(model: Any) -> dict[str, Tensor]:
    ids = _text(1)
    return {"inputs_embeds": model.get_input_embeddings()(ids).detach(), "attention_mask": torch.ones_like(ids)}


PROMPTS: dict[str, Callable[[Any], dict[str, Tensor]]] = {
    "one text": lambda model: {"input_ids": _text(1)},
    "padded batch": lambda model: _padded(),
    "images": lambda model: _images(model, 2),
    "an image and a text": lambda model: _images(model, 1),
    "embeddings": _embedded,
}


def takes(model: str, prompt: str) -> bool:
    """Whether plain `generate` could take such a prompt."""
    return "image" not in prompt or "image" in model


def _lora(model: Any, **options: Any) -> Any:
    import peft

    kind: Any = model.config.model_type
    # Layers inside the text part: those of the tower would need images.
    targets = {"mamba": ["in_proj"], "t5": ["q", "v"]}.get(kind, r".*layers\.\d+\..*(q_proj|up_proj|w1)$")
    if kind == "mixtral":
        targets = ["q_proj", "v_proj"]
    task = "SEQ_2_SEQ_LM" if kind == "t5" else "CAUSAL_LM"
    config = peft.LoraConfig(r=4, target_modules=targets, init_lora_weights=False, task_type=task, **options)
    adapted = peft.get_peft_model(model, config, adapter_name="first")
    adapted.add_adapter("second", config)
    return adapted.eval()


def _both(model: Any) -> Any:
    adapted = _lora(model)
    adapted.base_model.set_adapter(["first", "second"])
    return adapted


def _prompt_tuned(model: Any) -> Any:
    import peft

    task = "SEQ_2_SEQ_LM" if model.config.is_encoder_decoder else "CAUSAL_LM"
    return peft.get_peft_model(model, peft.PromptTuningConfig(num_virtual_tokens=4, task_type=task)).eval()


ADAPTERS: dict[str, Callable[[Any], Any]] = {
    "none": lambda model: model,
    "LoRA": _lora,
    "DoRA": lambda model: _lora(model, use_dora=True),
    "two LoRAs": _both,
    "LoRA merged": lambda model: _lora(model).merge_and_unload(),
    "prompt tuning": _prompt_tuned,
}


def adapt(model: Any, name: str) -> Any:
    with warnings.catch_warnings(), torch.random.fork_rng():
        warnings.simplefilter("ignore")
        torch.manual_seed(1)
        return ADAPTERS[name](model)


class Alternating:
    """A `GrammarState` of one's own: digits and letters by turns."""

    def __init__(self, is_digit: bool = True) -> None:
        self.is_digit = is_digit

    def fork(self) -> Alternating:
        return Alternating(self.is_digit)

    def advance(self, token: int) -> None:
        self.is_digit = not self.is_digit

    def mask(self) -> Tensor:
        numbers = torch.arange(VOCAB_SIZE)
        return numbers < 10 if self.is_digit else (numbers >= 10) & (numbers < len(CHARACTERS))


def _odd_or_even(row: int, ids: Tensor) -> list[int]:
    return list(range(len(ids) % 2, len(CHARACTERS), 2))


def _outlines() -> Any:
    import outlines_core

    letters: Any = {letter: [token] for token, letter in enumerate(CHARACTERS)}
    return outlines_core.Index(PATTERN, outlines_core.Vocabulary(END, letters))


def _xgrammar() -> Any:
    import xgrammar

    vocab = [*CHARACTERS, "<pad>", "<image>", "<end>", "<a>", "<b>", "<c>"]
    info = xgrammar.TokenizerInfo(vocab, xgrammar.VocabType.RAW, vocab_size=VOCAB_SIZE, stop_token_ids=[END])
    return xgrammar.GrammarCompiler(info).compile_regex(PATTERN)


def _xgrammars_own() -> Any:
    from xgrammar.contrib.hf import LogitsProcessor

    return LogitsProcessor(_xgrammar())


def _processor(processor: Any) -> dict[str, Any]:
    return {"logits_processor": LogitsProcessorList([processor])}


CONSTRAINTS: dict[str, Callable[[], dict[str, Any]]] = {
    "none": dict,
    "repetition penalty": lambda: {"repetition_penalty": 1.4},
    "allowed tokens": lambda: {"prefix_allowed_tokens_fn": _odd_or_even},
    "own grammar": lambda: _processor(GrammarProcessor(Alternating())),
    "outlines-core": lambda: _processor(GrammarProcessor(_outlines())),
    "xgrammar": lambda: _processor(GrammarProcessor(_xgrammar())),
    "xgrammar's processor": lambda: _processor(_xgrammars_own()),
}
PACKAGES = {"outlines-core": "outlines_core", "xgrammar": "xgrammar", "xgrammar's processor": "xgrammar"}
"""What a constraint imports."""
