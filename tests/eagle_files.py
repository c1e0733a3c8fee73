"""Random EAGLE-3 heads written in both public formats, and a slow plain reading of the same files."""

import json
import math
from pathlib import Path

import torch
from safetensors.torch import save_file

SPECULATORS, SAFEAILAB = "speculators", "safeailab"


def shape(**options):
    """What a head is made of; `flags` are configuration keys of the speculators format."""
    sizes = {"vocab": 64, "draft_vocab": 40, "hidden": 24, "target_hidden": 32, "intermediate": 40, "heads": 4}
    return sizes | {"key_heads": 2, "head_dim": 6, "layers": 1, "features": 3, "flags": {}, "extras": ()} | options


def random_tensors(made, seed=0, scale=0.5):
    """Tensors in the speculators format's names; `extras` names what not every file has."""
    generator = torch.Generator().manual_seed(seed)
    h, wide, heads = made["hidden"], made["head_dim"] * made["heads"], made["key_heads"] * made["head_dim"]
    fused = made["features"] * made["target_hidden"]
    sizes = {"fc.weight": (h, fused), "norm.weight": (h,), "lm_head.weight": (made["draft_vocab"], h)}
    for i in range(made["layers"]):
        width = 2 * h if i == 0 else h
        projections = {"q": (wide, width), "k": (heads, width), "v": (heads, width), "o": (h, wide)}
        sizes |= {f"layers.{i}.self_attn.{name}_proj.weight": size for name, size in projections.items()}
        sizes |= {f"layers.{i}.mlp.{name}_proj.weight": (made["intermediate"], h) for name in ("gate", "up")}
        sizes |= {f"layers.{i}.mlp.down_proj.weight": (h, made["intermediate"])}
        norms = ["input_layernorm", "post_attention_layernorm", *(["hidden_norm"] if i == 0 else [])]
        sizes |= {f"layers.{i}.{name}.weight": (h,) for name in norms}
        if "biases" in made["extras"]:
            sizes |= {f"layers.{i}.self_attn.{n}_proj.bias": projections[n][:1] for n in "qkvo"}
            sizes |= {f"layers.{i}.mlp.{n}_proj.bias": (made["intermediate"],) for n in ("gate", "up")}
            sizes |= {f"layers.{i}.mlp.down_proj.bias": (h,)}
        if "head_norms" in made["extras"]:
            sizes |= {f"layers.{i}.self_attn.{n}_norm.weight": (made["head_dim"],) for n in "qk"}
    if made["flags"].get("fc_norm"):
        sizes |= {f"fc_norm.{i}.weight": (made["target_hidden"],) for i in range(made["features"])}
    if made["flags"].get("norm_before_fc"):
        sizes["input_norm.weight"] = (fused,)
    if "embedding" in made["extras"]:
        sizes["embed_tokens.weight"] = (made["vocab"], h)
    tensors = {
        name: 1 + 0.3 * torch.randn(size, generator=generator)
        if "norm" in name
        else scale / math.sqrt(size[-1] / 4) * torch.randn(size, generator=generator)
        for name, size in sizes.items()
    }
    if made["draft_vocab"] < made["vocab"]:
        ids = torch.randperm(made["vocab"], generator=generator)[: made["draft_vocab"]].sort().values
        tensors["d2t"] = ids - torch.arange(made["draft_vocab"])
        tensors["t2d"] = torch.zeros(made["vocab"], dtype=torch.bool).index_fill(0, ids, True)
    return tensors


def llama_keys(made):
    return {
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": made["hidden"],
        "intermediate_size": made["intermediate"],
        "num_attention_heads": made["heads"],
        "num_key_value_heads": made["key_heads"],
        "head_dim": made["head_dim"],
        "num_hidden_layers": made["layers"],
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 256,
        "vocab_size": made["vocab"],
    } | made.get("llama", {"rope_theta": 10000.0})


def write(folder, made, tensors, format_name):
    """Write the folder as the library of that name does."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    own = {"draft_vocab_size": made["draft_vocab"], "target_hidden_size": made["target_hidden"]} | made["flags"]
    if format_name == SPECULATORS:
        config = {
            "architectures": ["Eagle3Speculator"],
            "speculators_model_type": "eagle3",
            "speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": "some/model"}},
            "transformer_layer_config": llama_keys(made),
        } | own
    else:
        config = {"architectures": ["LlamaForCausalLM"]} | llama_keys(made) | own
        tensors = {name.replace("layers.0.", "midlayer."): tensor for name, tensor in tensors.items()}
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    return folder


class PlainEagle:
    """The head in float64, without cache, batch, tree or fused matrix: every pass reads the whole text again."""

    def __init__(self, made, tensors, embedding):
        self.made = made
        self.tensors = {name: t.double() if t.is_floating_point() else t for name, t in tensors.items()}
        self.embedding = tensors.get("embed_tokens.weight", embedding).detach().double()
        offsets = self.tensors.get("d2t", torch.zeros(made["draft_vocab"], dtype=torch.int64))
        self.target_ids = (torch.arange(made["draft_vocab"]) + offsets).tolist()

    def logits(self, states, tokens, path, first=0):
        """float64 [V] after the drafted tokens `path`, -inf outside the draft vocabulary.

        states: [n - 1 - first, features * J], the target's before each of `tokens[first + 1:]`; positions from `first`.
        """
        features, read = self._fuse(states.double()), list(tokens[first + 1 :])
        for token in [*path, None]:
            output = self._layers(features, read, first)[-1:]
            normed = self._norm(output, "norm")
            features = torch.cat([features, normed if self.made["flags"].get("norm_output") else output])
            read.append(token)
        full = torch.full((self.made["vocab"],), -torch.inf, dtype=torch.float64)
        for draft_id, value in enumerate((self.tensors["lm_head.weight"] @ normed[0]).tolist()):
            full[self.target_ids[draft_id]] = value
        return full

    def _norm(self, x, name):
        return x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * self.tensors[f"{name}.weight"]

    def _linear(self, x, name):
        return x @ self.tensors[f"{name}.weight"].T + self.tensors.get(f"{name}.bias", 0)

    def _fuse(self, states):
        flags, parts = self.made["flags"], states.split(self.made["target_hidden"], -1)
        if flags.get("fc_norm"):
            states = torch.cat([self._norm(part, f"fc_norm.{i}") for i, part in enumerate(parts)], -1)
        if flags.get("norm_before_fc"):
            states = self._norm(states, "input_norm")
        return self._linear(states, "fc")

    def _layers(self, states, tokens, first):
        for i in range(self.made["layers"]):
            name = f"layers.{i}"
            if i == 0:
                normed = self._norm(states, f"{name}.hidden_norm")
                embedded = self._norm(self.embedding[tokens], f"{name}.input_layernorm")
                inputs = torch.cat([embedded, normed], -1)
                states = normed if self.made["flags"].get("norm_before_residual") else states
            else:
                inputs = self._norm(states, f"{name}.input_layernorm")
            states = states + self._attention(inputs, f"{name}.self_attn", first)
            normed = self._norm(states, f"{name}.post_attention_layernorm")
            gate, up = (self._linear(normed, f"{name}.mlp.{n}_proj") for n in ("gate", "up"))
            states = states + self._linear(gate * torch.sigmoid(gate) * up, f"{name}.mlp.down_proj")
        return states

    def _attention(self, inputs, name, first):
        d, length = self.made["head_dim"], len(inputs)
        window = self.made.get("llama", {}).get("sliding_window", length)
        share = self.made["heads"] // self.made["key_heads"]
        queries, keys, values = (self._linear(inputs, f"{name}.{n}_proj").view(length, -1, d) for n in "qkv")
        queries, keys = (self._turn(x, f"{name}.{n}_norm", first) for x, n in ((queries, "q"), (keys, "k")))
        mixed = []
        for head in range(self.made["heads"]):
            scores = queries[:, head] @ keys[:, head // share].T / math.sqrt(d)
            for i in range(length):
                scores[i, i + 1 :] = -torch.inf
                scores[i, : max(i - window + 1, 0)] = -torch.inf
            mixed.append(scores.softmax(-1) @ values[:, head // share])
        return self._linear(torch.cat(mixed, -1), f"{name}.o_proj")

    def _turn(self, heads, norm, first):
        """Rotary positions as a product of complex numbers."""
        d = self.made["head_dim"]
        if f"{norm}.weight" in self.tensors:
            heads = self._norm(heads, norm)
        frequencies = 10000.0 ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
        angles = torch.outer(torch.arange(first, first + len(heads)).double(), frequencies).unsqueeze(1)
        turned = torch.complex(*heads.chunk(2, -1)) * torch.polar(torch.ones_like(angles), angles)
        return torch.cat([turned.real, turned.imag], -1)
