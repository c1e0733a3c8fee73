"""The models that the examples run on: a name from the command line, or a tiny random one that needs no download."""

from __future__ import annotations

import argparse
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    CLIPImageProcessorPil,
    LlamaConfig,
    LlamaForCausalLM,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
)

PROMPT = "The tree stands by the river. The tree stands by the"
CHARACTERS = ["\n", *map(chr, range(32, 127))]


def arguments(description: str | None, has_draft: bool = False) -> argparse.Namespace:
    """--model, --prompt, --new-tokens and, if asked for, --draft-model."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a name or folder of a causal language model (default: a tiny random one)")
    if has_draft:
        parser.add_argument("--draft-model", help="one with the same tokenizer (default: a tiny random one)")
    parser.add_argument("--prompt", default=PROMPT)
    parser.add_argument("--new-tokens", type=int, default=32)
    return parser.parse_args()


def load(name: str | None) -> tuple[Any, Any]:
    """A model and its tokenizer."""
    if name is None:
        print("A tiny random model writes this gibberish; --model NAME takes a real one.")
        return tiny_model(), tiny_tokenizer()
    tokenizer = AutoTokenizer.from_pretrained(name)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    return AutoModelForCausalLM.from_pretrained(name).eval(), tokenizer


def tiny_model(noise: float = 0.0, is_reversed: bool = False) -> LlamaForCausalLM:
    """A random llama over single characters; with noise, a stand-in for its draft model: it often agrees.

    Reversed, it is the same model for the reversed vocabulary of `tiny_tokenizer(is_reversed=True)`.
    """
    config = LlamaConfig(
        vocab_size=len(CHARACTERS) + 1,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=len(CHARACTERS),
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight += noise * weight.std(correction=0) * torch.randn_like(weight)
        if is_reversed:
            for weight in (model.model.embed_tokens.weight, model.lm_head.weight):
                weight[: len(CHARACTERS)] = weight[: len(CHARACTERS)].flip(0)
    return model


def tiny_tokenizer(is_reversed: bool = False) -> PreTrainedTokenizerFast:
    """One token per printable ASCII character, in either order, and padding."""
    characters = CHARACTERS[::-1] if is_reversed else CHARACTERS
    tokenizer = Tokenizer(models.BPE({character: index for index, character in enumerate(characters)}, []))
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", padding_side="left")


def tiny_model_with_images() -> tuple[LlavaForConditionalGeneration, LlavaProcessor]:
    """A random LLaVA over single characters, and its processor: an image is four placeholders."""
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    image_id = len(tokenizer) - 1
    tower = {"model_type": "clip_vision_model", "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    tower |= {"num_attention_heads": 2, "image_size": 8, "patch_size": 4, "projection_dim": 16}
    text = tiny_model().config.to_dict() | {"vocab_size": image_id + 1}
    config = LlavaConfig(vision_config=tower, text_config=text, image_token_index=image_id, image_seq_length=4)
    torch.manual_seed(0)
    model = LlavaForConditionalGeneration(config).eval()
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    processor = LlavaProcessor(
        CLIPImageProcessorPil(size={"height": 8, "width": 8}, do_center_crop=False),
        tokenizer,
        patch_size=4,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=(
            "{% for part in messages[0].content %}{{ '<image>' if part.type == 'image' else part.text }}{% endfor %}"
        ),
    )
    return model, processor
