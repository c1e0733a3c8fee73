"""Random EAGLE heads in two formats, SafeAILab's and the speculators library's, and a slow plain reading of them."""

import torch
from helpers.eagle3_files import SAFEAILAB, PlainEagle3
from helpers.head_files import draw, layer_keys, layer_sizes, speculators_keys, write_files


def shape(**options):
    """Sizes and options of a head; see `eagle3_files`. It reads the target's last hidden state."""
    sizes = {"vocab": 64, "draft_vocab": 64, "hidden": 32, "intermediate": 40, "heads": 4, "key_heads": 2}
    sizes |= {"head_dim": 6, "layers": 1, "hidden_layers": (-1,), "is_eagle": True}
    return sizes | {"extras": ("fusion bias", "embedding"), "flags": {}, "llama": {}} | options


def random_tensors(made, seed=0, scale=0.5):
    """Tensors by SafeAILab's names."""
    h = made["hidden"]
    sizes = {"fc.weight": (h, 2 * h)}
    if "fusion bias" in made["extras"]:
        sizes["fc.bias"] = (h,)
    for i in range(made["layers"]):
        sizes |= layer_sizes(made, i, h)
    del sizes["layers.0.input_layernorm.weight"]
    if "embedding" in made["extras"]:
        sizes["embed_tokens.weight"] = (made["vocab"], h)
    return draw(sizes, made, seed, scale)


def write(folder, made, tensors, format_name):
    """Write the folder as the library of that name does."""
    if format_name == SAFEAILAB:
        config = {"architectures": ["LlamaForCausalLM"], "bias": "fc.bias" in tensors} | layer_keys(made, "llama")
    else:
        config = {"architectures": ["EagleSpeculator", "LlamaDecoderLayer"], "layernorms": False}
        config |= speculators_keys(made, "eagle", "llama") | {"fusion_bias": "fc.bias" in tensors}
        config |= {"transformer_layer_architecture": "LlamaDecoderLayer"}
        names = {"fc.": "fusion_fc.", "layers.0.": "transformer."}
        for old, new in names.items():
            tensors = {n.replace(old, new) if n.startswith(old) else n: t for n, t in tensors.items()}
    return write_files(folder, config | made["flags"], tensors)


class PlainEagle(PlainEagle3):
    """Every pass reads the whole text again, and states as they are."""

    def _read(self, output):
        return output

    def _fuse(self, states):
        return states

    def _first_inputs(self, states, tokens):
        fused = self.linear(torch.cat([self.embedding[tokens], states], -1), "fc")
        return fused, fused
