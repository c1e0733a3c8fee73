"""Tiny random checkpoints with MTP layers by every publisher's names, and a slow plain reading of them.

The decoder layers of the MTP layers come from a second model of the target's class, the donor.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from helpers import zoo
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, PreTrainedModel

Names = Mapping[str, str]
PARTS = ("embedding_norm", "hidden_norm", "projection", "norm")
AFTER = "model.layers.{after}."


def names(begin: str, *ends: str, block: str | None = None) -> dict[str, str]:
    """Names of `PARTS`, and how those of a decoder layer begin, by default as these do."""
    parts = {part: f"{begin}{end}.weight" for part, end in zip(PARTS, ends, strict=False)}
    return parts | {"block": begin if block is None else block}


DEEPSEEK = names(AFTER, "enorm", "hnorm", "eh_proj", "shared_head.norm")
BAILING = names(AFTER, "enorm", "hnorm", "eh_proj", "final_layernorm")
QWEN = names("mtp.", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "norm", block="mtp.layers.{layer}.")
MIMO = names("model.mtp_layers.{layer}.", "token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm")
ERNIE = names(
    "model.mtp_", "emb_norm.{layer}", "hidden_norm.{layer}", "linear_proj.{layer}", block="model.mtp_block.{layer}."
)
NEMOTRON = names("mtp.layers.", "0.enorm", "0.hnorm", "0.eh_proj", "1.final_layernorm", block="mtp.layers.{layer}.")


@dataclass(frozen=True)
class Published:
    """The MTP layers of an architecture, as their publisher ships them.

    Attributes:
        architecture: of the target.
        names: of the MTP tensors; `{layer}` counts MTP layers, `{after}` goes on from the target's.
        donor: the donor's options where they are not the target's.
        count: the configuration's key for the number of layers.
        num_blocks: decoder layers of an MTP layer.
    """

    architecture: zoo.Architecture
    names: Names
    donor: Mapping[str, Any] = field(default_factory=dict)
    count: str = "num_nextn_predict_layers"
    num_blocks: int = 1


_SPARSE = {"first_k_dense_replace": 0}
_EXPERTS = dict(zoo.BY_NAME["qwen3_next"].options)
_EXPERTS_BY_TYPE = zoo._EXPERTS | {
    "head_dim": 8,
    "sliding_window": 8,
    "layer_types": ["sliding_attention", "full_attention"],
}
_FULL = {"layer_types": ["full_attention"] * 3}
_NEMOTRON = dict(zoo.BY_NAME["nemotron_h"].options) | {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "moe_shared_expert_intermediate_size": 24,
    "num_nextn_predict_layers": 1,
}
PUBLISHED = {
    "deepseek_v3": Published(zoo.BY_NAME["deepseek_v3"], DEEPSEEK, _SPARSE),
    "glm4_moe": Published(zoo.BY_NAME["glm4_moe"], DEEPSEEK, _SPARSE),
    "glm4_moe_lite": Published(
        zoo.Architecture("glm4_moe_lite", zoo.MLA | {"mlp_layer_types": ["dense", "sparse"]}),
        DEEPSEEK,
        {"mlp_layer_types": ["sparse"] * 3},
    ),
    "bailing_hybrid": Published(zoo.BY_NAME["bailing_hybrid"], BAILING, _FULL | {"mlp_layer_types": ["sparse"] * 3}),
    "hy_v3": Published(
        zoo.Architecture("hy_v3", zoo._EXPERTS | {"head_dim": 8, "mlp_layer_types": ["dense", "sparse"]}),
        BAILING,
        {"mlp_layer_types": ["sparse"] * 3},
    ),
    "qwen3_next": Published(zoo.BY_NAME["qwen3_next"], QWEN, _FULL),
    "mellum": Published(
        zoo.Architecture("mellum", _EXPERTS_BY_TYPE | {"num_nextn_predict_layers": 1}),
        QWEN,
        {"layer_types": ["sliding_attention"] * 3, "mlp_layer_types": ["sparse"] * 3},
    ),
    "qwen3_5": Published(zoo.BY_NAME["qwen3_5_text"], QWEN, _FULL, "mtp_num_hidden_layers"),
    "qwen3_5_moe": Published(zoo.Architecture("qwen3_5_moe_text", _EXPERTS), QWEN, _FULL, "mtp_num_hidden_layers"),
    "mimo": Published(zoo.Architecture("qwen2"), MIMO),
    "ernie4_5_moe": Published(zoo.BY_NAME["ernie4_5_moe"], ERNIE, {"moe_layer_start_index": 9}),
    "exaone_moe": Published(
        zoo.Architecture("exaone_moe", zoo.MLA | {"sliding_window_pattern": 2, "mlp_layer_types": ["dense", "sparse"]}),
        QWEN,
        _FULL | {"mlp_layer_types": ["dense"] * 3},
    ),
    "nemotron_h": Published(
        zoo.Architecture("nemotron_h", _NEMOTRON), NEMOTRON, {"layers_block_type": ["attention", "moe"]}, num_blocks=2
    ),
}


@dataclass(frozen=True)
class Made:
    """A checkpoint's target, as transformers reads it, and what its MTP layers are made of."""

    target: PreTrainedModel
    donor: PreTrainedModel
    own: list[dict[str, torch.Tensor]]
    """Per MTP layer, by the names of its layout without its numbers."""
    published: Published


def write(folder: Path, name: str, num_layers: int = 1, seed: int = 0, **options: Any) -> Made:
    """Write a checkpoint with so many MTP layers. `options` are further ones of the target's configuration."""
    published = PUBLISHED[name]
    architecture = zoo.Architecture(published.architecture.model_type, dict(published.architecture.options) | options)
    target = zoo.build(architecture)
    setattr(target.config, published.count, num_layers)
    target.save_pretrained(folder)
    donor_options: dict[str, Any] = {"num_hidden_layers": num_layers * published.num_blocks} | dict(published.donor)
    for key in ("layer_types", "mlp_layer_types"):
        if key in donor_options:
            donor_options[key] = donor_options[key][: donor_options["num_hidden_layers"]]
    donor = _donor(zoo.Architecture(architecture.model_type, dict(architecture.options) | donor_options), seed)
    donor.save_pretrained(folder / "donor")
    own = [_own(published, donor, seed + number) for number in range(num_layers)]
    tensors = load_file(folder / "model.safetensors") | _published(published, folder / "donor", own, target)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return Made(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval(), donor, own, published)


def _donor(architecture: zoo.Architecture, seed: int) -> PreTrainedModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed + 100)
        config = zoo.config_of(architecture)
        donor = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
        with torch.no_grad():
            for name, weight in donor.named_parameters():
                if "norm" in name:
                    weight.add_(0.2 * torch.randn_like(weight))
    return donor


def _own(published: Published, donor: PreTrainedModel, seed: int) -> dict[str, torch.Tensor]:
    """The tensors of an MTP layer outside of its decoder layers; those of Qwen's layout are the first layer's."""
    generator = torch.Generator().manual_seed(0 if published.names is QWEN else seed)
    size = donor.config.hidden_size
    like = next(weight for name, weight in donor.named_parameters() if "norm" in name)
    norms = {
        name: like.detach().mean() + 0.3 * torch.randn(size, generator=generator)
        for name in ("embedding_norm", "hidden_norm", "norm")
        if name in published.names
    }
    return norms | {"projection": 0.2 * torch.randn(size, 2 * size, generator=generator)}


def _published(
    published: Published, folder: Path, own: list[dict[str, torch.Tensor]], target: PreTrainedModel
) -> dict[str, torch.Tensor]:
    first = target.config.num_hidden_layers
    tensors = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        head, _, rest = name.partition("layers.")
        if rest and head in ("model.", "backbone."):
            number, _, rest = rest.partition(".")
            prefix = published.names["block"].format(layer=number, after=first + int(number))
            tensors[prefix + rest] = tensor.clone()
    for layer, parts in enumerate(own):
        for name, tensor in parts.items():
            tensors[published.names[name].format(layer=layer, after=first + layer)] = tensor
        if published.names is DEEPSEEK:  # The others leave copies out.
            prefix = f"model.layers.{first + layer}"
            tensors[f"{prefix}.embed_tokens.weight"] = target.get_input_embeddings().weight.detach().clone()
            tensors[f"{prefix}.shared_head.head.weight"] = target.get_output_embeddings().weight.detach().clone()
    return tensors


class PlainMtp:
    """Every pass reads the whole text again, without a cache of keys; in float32, as transformers' layers are.

    The passes over a text are kept by path: siblings have one parent.
    """

    def __init__(self, made: Made) -> None:
        self.target, self.donor, self.own = made.target, made.donor, made.own
        self.is_hidden_first = made.published.names is MIMO
        self.num_blocks = made.published.num_blocks
        decoder = made.donor.get_decoder()
        self.rotary = getattr(decoder, "rotary_emb", None)
        self.blocks = list(decoder.layers)
        self._norm = decoder.norm_f if hasattr(decoder, "norm_f") else decoder.norm
        self._text: Any = None
        self._passes: dict[tuple[int, ...], tuple[torch.Tensor, list[torch.Tensor]]] = {}

    @torch.no_grad()
    def logits(self, states, tokens, path, first=0):
        """float64 [V] after the drafted tokens `path`. states: [n - 1 - first, H], the target's before the tokens."""
        if self._text is not states:
            self._text, self._passes = states, {}
        _, outputs = self._pass(tuple(path), tokens[first + 1 :])
        output: Any = self.target.get_output_embeddings()
        return output(outputs[len(path) % len(self.own)][0, -1]).double()

    def _pass(self, path, text):
        """The layers' inputs and outputs, over the text and the drafted tokens `path`."""
        if path not in self._passes:
            states = self._text.unsqueeze(0)
            if path:
                states, outputs = self._pass(path[:-1], text)
                states = torch.cat([states, outputs[-1][:, -1:]], 1)
            self._passes[path] = states, self._layers(states, torch.tensor([[*text, *path]]))
        return self._passes[path]

    def _layers(self, states, tokens):
        """Every layer's outputs [1, n - l, H]: layer l begins with the l-th token."""
        outputs = []
        for layer, own in enumerate(self.own):
            embedded = self.target.get_input_embeddings()(tokens[:, layer:])
            states = states if layer == 0 else outputs[-1][:, :-1]
            parts = [self.norm(embedded, own["embedding_norm"]), self.norm(states, own["hidden_norm"])]
            states = torch.cat(parts[::-1] if self.is_hidden_first else parts, -1) @ own["projection"].T
            for number in range(layer * self.num_blocks, (layer + 1) * self.num_blocks):
                states = self._block(self.blocks[number], states)
            outputs.append(self.norm(states, own["norm"]) if "norm" in own else states)
        return outputs

    def _block(self, block, states):
        size = states.shape[1]
        positions = torch.arange(size).unsqueeze(0)
        mask = torch.full((1, 1, size, size), torch.finfo(torch.float32).min).triu(1)
        if window := getattr(getattr(block, "self_attn", None), "sliding_window", None):
            mask += torch.full_like(mask, torch.finfo(torch.float32).min / 2).tril(-window)
        of_type = {"layer_type": self.donor.config.layer_types[0]} if hasattr(self.rotary, "layer_types") else {}
        options = {} if self.rotary is None else {"position_embeddings": self.rotary(states, positions, **of_type)}
        return block(states, attention_mask=mask, position_ids=positions, **options)

    def norm(self, states, weight):
        norm = copy.deepcopy(self._norm)
        norm.weight.data = weight
        return norm(states)
