"""Common parts of the random heads of all kinds: decoder layers, their files, and a slow plain reading of them."""

import json
import math
from pathlib import Path

import torch
from safetensors.torch import save_file

SPECULATORS = "speculators"


def layer_sizes(made, layer, input_size):
    """The sizes of a decoder layer's tensors, whose q, k and v read vectors of `input_size`."""
    h, wide, heads = made["hidden"], made["head_dim"] * made["heads"], made["key_heads"] * made["head_dim"]
    name, projections = f"layers.{layer}", {"q": wide, "k": heads, "v": heads}
    sizes = {f"{name}.self_attn.{n}_proj.weight": (size, input_size) for n, size in projections.items()}
    sizes |= {f"{name}.self_attn.o_proj.weight": (h, wide)}
    sizes |= {f"{name}.mlp.{n}_proj.weight": (made["intermediate"], h) for n in ("gate", "up")}
    sizes |= {f"{name}.mlp.down_proj.weight": (h, made["intermediate"])}
    sizes |= {f"{name}.{n}.weight": (h,) for n in ("input_layernorm", "post_attention_layernorm")}
    if "biases" in made["extras"]:
        weights = [(n, size) for n, size in sizes.items() if "_proj" in n]
        sizes |= {n.replace("weight", "bias"): size[:1] for n, size in weights}
    if "sinks" in made["extras"]:
        sizes[f"{name}.self_attn.attention_sink_bias"] = (made["heads"],)
    if "head_norms" in made["extras"]:
        sizes |= {f"{name}.self_attn.{n}_norm.weight": (made["head_dim"],) for n in "qk"}
    return sizes


def draw(sizes, made, seed, scale):
    """Random tensors of these sizes, and the maps of a reduced vocabulary."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, size in sizes.items():
        values = torch.randn(size, generator=generator)
        loudness = 3 * scale if "markov" in name else scale
        tensors[name] = 1 + 0.3 * values if "norm" in name else loudness / math.sqrt(size[-1] / 4) * values
    if made["draft_vocab"] < made["vocab"]:
        ids = torch.randperm(made["vocab"], generator=generator)[: made["draft_vocab"]].sort().values
        tensors["d2t"] = ids - torch.arange(made["draft_vocab"])
        tensors["t2d"] = torch.zeros(made["vocab"], dtype=torch.bool).index_fill(0, ids, True)
    return tensors


def layer_keys(made, model_type):
    keys = {
        "model_type": model_type,
        "hidden_act": "silu",
        "hidden_size": made["hidden"],
        "intermediate_size": made["intermediate"],
        "num_attention_heads": made["heads"],
        "num_key_value_heads": made["key_heads"],
        "head_dim": made["head_dim"],
        "num_hidden_layers": made["layers"],
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 256,
        "vocab_size": made["vocab"],
    }
    return keys | made["llama"]


def speculators_keys(made, algorithm, model_type):
    """Keys that the speculators library's configurations of all kinds have."""
    return {
        "speculators_model_type": algorithm,
        "speculators_config": {"algorithm": algorithm, "verifier": {"name_or_path": "some/model"}},
        "draft_vocab_size": made["draft_vocab"],
        "transformer_layer_config": layer_keys(made, model_type),
    }


def write_files(folder, config, tensors):
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    return folder


class PlainHead:
    """A head in float64, without cache, batch, tree or fused matrix, head by head."""

    def __init__(self, made, tensors, target):
        self.made = made
        self.tensors = {name: t.double() if t.is_floating_point() else t for name, t in tensors.items()}
        own, lm_head = tensors.get("embed_tokens.weight"), tensors.get("lm_head.weight")
        self.embedding = (target.get_input_embeddings().weight if own is None else own).detach().double()
        self.lm_head = (target.get_output_embeddings().weight if lm_head is None else lm_head).detach().double()
        offsets = self.tensors.get("d2t", torch.zeros(made["draft_vocab"], dtype=torch.int64))
        self.target_ids = (torch.arange(made["draft_vocab"]) + offsets).tolist()

    def flag(self, key, default=None):
        """A key that the file has at the top or in its section."""
        flags = self.made["flags"]
        return {**flags, **flags.get("dflash_config", {})}.get(key, default)

    def over_vocabulary(self, values):
        """float64 [V] of the draft vocabulary's values, -inf outside it."""
        full = torch.full((self.made["vocab"],), -torch.inf, dtype=torch.float64)
        full[self.target_ids] = values * self.flag("logit_scale", 1)
        return full

    def norm(self, x, name):
        return x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * self.tensors[f"{name}.weight"]

    def linear(self, x, name):
        return x @ self.tensors[f"{name}.weight"].T + self.tensors.get(f"{name}.bias", 0)

    def mlp(self, states, layer):
        """The layer's second half, its residual included."""
        normed = self.norm(states, f"{layer}.post_attention_layernorm")
        return states + self.mlp_of(normed, layer)

    def mlp_of(self, normed, layer):
        """The MLP alone."""
        gate, up = (self.linear(normed, f"{layer}.mlp.{n}_proj") for n in ("gate", "up"))
        return self.linear(self._activate(gate) * up, f"{layer}.mlp.down_proj")

    def _activate(self, x):
        name = self.made["llama"].get("hidden_act", "silu")
        if name == "gelu":
            return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))
        if name == "gelu_pytorch_tanh":
            return x * 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
        return x * torch.sigmoid(x)

    def attention(self, name, asking, asked, first_asking, first_asked, is_seen):
        """Queries of `asking` over keys and values of `asked`, whose positions count from `first_...`.

        is_seen: whether a query's number sees a key's.
        """
        d, share = self.made["head_dim"], self.made["heads"] // self.made["key_heads"]
        queries = self._turn(self._heads(asking, f"{name}.q_proj"), f"{name}.q_norm", first_asking)
        keys = self._turn(self._heads(asked, f"{name}.k_proj"), f"{name}.k_norm", first_asked)
        values, mixed = self.flag("attention_value_scale", 1) * self._heads(asked, f"{name}.v_proj"), []
        hidden = torch.tensor([[not is_seen(i, j) for j in range(len(asked))] for i in range(len(asking))])
        for head in range(self.made["heads"]):
            scores = queries[:, head] @ keys[:, head // share].T / math.sqrt(d)
            raised = scores.masked_fill(hidden, -torch.inf).exp()
            sink = self.tensors.get(f"{name}.attention_sink_bias")
            total = raised.sum(-1, keepdim=True) + (0 if sink is None else sink[head].exp())
            mixed.append(raised / total @ values[:, head // share])
        return self.linear(torch.cat(mixed, -1), f"{name}.o_proj")

    def _heads(self, x, name):
        return self.linear(x, name).view(len(x), -1, self.made["head_dim"])

    def _turn(self, heads, norm, first):
        """Rotary positions as a product of complex numbers, of the part of a head that is rotated."""
        d = int(self.made["head_dim"] * self.made["llama"].get("partial_rotary_factor", 1))
        if f"{norm}.weight" in self.tensors:
            heads = self.norm(heads, norm)
        frequencies = 10000.0 ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
        angles = torch.outer(torch.arange(first, first + len(heads)).double(), frequencies).unsqueeze(1)
        turned = torch.complex(*heads[..., :d].chunk(2, -1)) * torch.polar(torch.ones_like(angles), angles)
        return torch.cat([turned.real, turned.imag, heads[..., d:]], -1)
