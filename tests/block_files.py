"""Random block-parallel heads written in the public formats, and a slow plain reading of the same files."""

import json
import math
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from safetensors.torch import save_file

from treespec.heads.build import build_head
from treespec.heads.checkpoint import read_checkpoint

AUTHORS, SPECULATORS = "authors", "speculators"
FULL, SLIDING = "full_attention", "sliding_attention"


def shape(**options):
    """What a head is made of; `extras` names what not every file has, `flags` further configuration keys.

    `hidden_layers` are indices of the target's hidden states; `is_anchored`: slot 0 of a block guesses too.
    """
    sizes = {"vocab": 64, "draft_vocab": 40, "hidden": 32, "intermediate": 40, "heads": 4, "key_heads": 2}
    sizes |= {"head_dim": 6, "layers": 2, "hidden_layers": (1, 2), "block": 4, "mask_token": 63}
    return sizes | {"is_anchored": False, "rank": 0, "extras": ("head_norms",), "flags": {}, "llama": {}} | options


def dspark(**options):
    """The shape of a head with DSpark's additions."""
    extras = ("head_norms", "confidence", "markov confidence")
    return shape(**{"is_anchored": True, "rank": 5, "block": 3, "extras": extras} | options)


def random_tensors(made, seed=0, scale=0.5):
    generator = torch.Generator().manual_seed(seed)
    h, wide, heads = made["hidden"], made["head_dim"] * made["heads"], made["key_heads"] * made["head_dim"]
    sizes = {"fc.weight": (h, len(made["hidden_layers"]) * h), "hidden_norm.weight": (h,), "norm.weight": (h,)}
    for i in range(made["layers"]):
        projections = {"q": (wide, h), "k": (heads, h), "v": (heads, h), "o": (h, wide)}
        sizes |= {f"layers.{i}.self_attn.{name}_proj.weight": size for name, size in projections.items()}
        sizes |= {f"layers.{i}.mlp.{name}_proj.weight": (made["intermediate"], h) for name in ("gate", "up")}
        sizes |= {f"layers.{i}.mlp.down_proj.weight": (h, made["intermediate"])}
        sizes |= {f"layers.{i}.{name}.weight": (h,) for name in ("input_layernorm", "post_attention_layernorm")}
        if "head_norms" in made["extras"]:
            sizes |= {f"layers.{i}.self_attn.{n}_norm.weight": (made["head_dim"],) for n in "qk"}
        if "biases" in made["extras"]:
            sizes |= {f"layers.{i}.self_attn.{n}_proj.bias": projections[n][:1] for n in "qkvo"}
    if made["rank"]:
        sizes["markov_head.markov_w1.weight"] = (made["vocab"], made["rank"])
        sizes["markov_head.markov_w2.weight"] = (made["draft_vocab"], made["rank"])
    if "confidence" in made["extras"]:
        rank = made["rank"] if "markov confidence" in made["extras"] else 0
        sizes |= {"confidence_head.proj.weight": (1, h + rank), "confidence_head.proj.bias": (1,)}
    if "embedding" in made["extras"]:
        sizes["embed_tokens.weight"] = (made["vocab"], h)
    if "lm_head" in made["extras"] or made["draft_vocab"] < made["vocab"]:
        sizes["lm_head.weight"] = (made["draft_vocab"], h)
    tensors = {
        name: 1 + 0.3 * torch.randn(size, generator=generator)
        if "norm" in name
        else (3 * scale if "markov" in name else scale)
        / math.sqrt(size[-1] / 4)
        * torch.randn(size, generator=generator)
        for name, size in sizes.items()
    }
    if made["draft_vocab"] < made["vocab"]:
        ids = torch.randperm(made["vocab"], generator=generator)[: made["draft_vocab"]].sort().values
        tensors["d2t"] = ids - torch.arange(made["draft_vocab"])
        tensors["t2d"] = torch.zeros(made["vocab"], dtype=torch.bool).index_fill(0, ids, True)
    return tensors


def layer_keys(made):
    keys = {
        "model_type": "qwen3",
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


def write(folder, made, tensors, format_name):
    """Write the folder as the library of that name does."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    is_dspark = made["rank"] > 0 or made["is_anchored"]
    markov = {
        "markov_rank": made["rank"],
        "markov_head_type": "vanilla",
        "enable_confidence_head": "confidence" in made["extras"],
        "confidence_head_with_markov": "markov confidence" in made["extras"],
    }
    if format_name == SPECULATORS:
        kind = "dspark" if is_dspark else "dflash"
        config = {
            "speculators_model_type": kind,
            "speculators_config": {"algorithm": kind, "verifier": {"name_or_path": "some/model"}},
            "draft_vocab_size": made["draft_vocab"],
            "block_size": made["block"],
            "mask_token_id": made["mask_token"],
            "aux_hidden_state_layer_ids": list(made["hidden_layers"]),
            "sample_from_anchor": made["is_anchored"],
            "transformer_layer_config": layer_keys(made),
        }
    else:
        own = {"mask_token_id": made["mask_token"], "target_layer_ids": [i - 1 for i in made["hidden_layers"]]}
        config = {
            "architectures": ["Qwen3DSparkModel" if is_dspark else "DFlashDraftModel"],
            "block_size": made["block"],
            **(own if is_dspark else {"dflash_config": own}),
        } | layer_keys(made)
    config |= (markov if is_dspark else {}) | made["flags"]
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    return folder


def random_head(made):
    """The head of random tensors, by way of files."""
    tensors = random_tensors(made | {"extras": (*made["extras"], "embedding", "lm_head")})
    with TemporaryDirectory() as folder:
        return build_head(read_checkpoint(write(folder, made, tensors, SPECULATORS)))


class PlainBlock:
    """The head in float64, without cache, batch or fused matrix: a whole pass per text, head by head."""

    def __init__(self, made, tensors, embedding, lm_head):
        self.made = made
        self.tensors = {name: t.double() if t.is_floating_point() else t for name, t in tensors.items()}
        self.embedding = tensors.get("embed_tokens.weight", embedding).detach().double()
        self.lm_head = tensors.get("lm_head.weight", lm_head).detach().double()
        offsets = self.tensors.get("d2t", torch.zeros(made["draft_vocab"], dtype=torch.int64))
        self.target_ids = (torch.arange(made["draft_vocab"]) + offsets).tolist()
        self._outputs = {}

    def logits(self, states, tokens, path, first=0):
        """float64 [V] after the drafted tokens `path`, -inf outside the draft vocabulary.

        states: [n - 1 - first, features * J], the target's at each of `tokens[first:-1]`.
        """
        key = (tuple(tokens), first)
        if key not in self._outputs:
            self._outputs[key] = self._pass(states.double(), tokens[-1], first)
        output = self._outputs[key][len(path) + (0 if self.made["is_anchored"] else 1)]
        values = self.lm_head @ output
        if self.made["rank"]:
            before = self.tensors["markov_head.markov_w1.weight"][path[-1] if path else tokens[-1]]
            values = values + self.tensors["markov_head.markov_w2.weight"] @ before
        full = torch.full((self.made["vocab"],), -torch.inf, dtype=torch.float64)
        full[self.target_ids] = values
        return full

    def _pass(self, states, anchor, first):
        """Outputs of all slots [K, H]."""
        context = self._norm(self._linear(states, "fc"), "hidden_norm")
        block = self.embedding[[anchor, *[self.made["mask_token"]] * (self.made["block"] - 1)]]
        for i in range(self.made["layers"]):
            name = f"layers.{i}"
            block = block + self._attention(i, context, self._norm(block, f"{name}.input_layernorm"), first)
            normed = self._norm(block, f"{name}.post_attention_layernorm")
            gate, up = (self._linear(normed, f"{name}.mlp.{n}_proj") for n in ("gate", "up"))
            block = block + self._linear(gate * torch.sigmoid(gate) * up, f"{name}.mlp.down_proj")
        return self._norm(block, "norm")

    def _norm(self, x, name):
        return x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * self.tensors[f"{name}.weight"]

    def _linear(self, x, name):
        return x @ self.tensors[f"{name}.weight"].T + self.tensors.get(f"{name}.bias", 0)

    def _is_seen(self, layer, slot, key, num_context):
        """Whether a slot sees a key, counted over [context; block]."""
        kind = self.made["llama"].get("layer_types", [FULL] * self.made["layers"])[layer]
        is_all_causal = self.made["flags"].get("dflash_config", {}).get("causal", False)
        is_causal = is_all_causal or (kind == SLIDING and not self.made["flags"].get("sliding_window_non_causal"))
        if key >= num_context:
            return key - num_context <= slot or not is_causal
        return kind == FULL or num_context - key <= self.made["llama"]["sliding_window"]

    def _attention(self, layer, context, block, first):
        name, d, num_context = f"layers.{layer}.self_attn", self.made["head_dim"], len(context)
        share = self.made["heads"] // self.made["key_heads"]
        both = torch.cat([context, block])
        queries = self._linear(block, f"{name}.q_proj").view(len(block), -1, d)
        queries = self._turn(queries, f"{name}.q_norm", first + num_context)
        keys, values = (self._linear(both, f"{name}.{n}_proj").view(len(both), -1, d) for n in "kv")
        keys = self._turn(keys, f"{name}.k_norm", first)
        mixed = []
        for head in range(self.made["heads"]):
            scores = queries[:, head] @ keys[:, head // share].T / math.sqrt(d)
            for slot in range(len(block)):
                for key in range(len(both)):
                    if not self._is_seen(layer, slot, key, num_context):
                        scores[slot, key] = -torch.inf
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
