"""Random DFlash and DSpark heads written in the public formats, and a slow plain reading of the same files."""

from functools import partial
from tempfile import TemporaryDirectory

import torch
from helpers.head_files import SPECULATORS, PlainHead, draw, layer_keys, layer_sizes, speculators_keys, write_files

from treespec.heads.files.build import build_head
from treespec.heads.files.checkpoint import read_checkpoint

AUTHORS = "authors"
FULL, SLIDING = "full_attention", "sliding_attention"


def shape(**options):
    """Sizes and options of a head; `extras` names what not every file has, `flags` further configuration keys.

    `hidden_layers` are indices of the target's hidden states; `is_anchored`: position 0 of a block guesses too.
    """
    sizes = {"vocab": 64, "draft_vocab": 40, "hidden": 32, "intermediate": 40, "heads": 4, "key_heads": 2}
    sizes |= {"head_dim": 6, "layers": 2, "hidden_layers": (1, 2), "block": 4, "mask_token": 63}
    return sizes | {"is_anchored": False, "rank": 0, "extras": ("head_norms",), "flags": {}, "llama": {}} | options


def dspark(**options):
    """The shape of a head with DSpark's additions."""
    extras = ("head_norms", "confidence", "markov confidence")
    return shape(**{"is_anchored": True, "rank": 5, "block": 3, "extras": extras} | options)


DFLASH2 = {"conv_kernel_size": 3, "conv_group_size": 8, "selector_rank": 5, "selector_top_k": 6}


def dflash2(**options):
    """The shape of a head with DFlash 2's additions, whose selector scores a whole vocabulary."""
    return shape(**{"draft_vocab": 64, "flags": DFLASH2} | options)


def random_tensors(made, seed=0, scale=0.5):
    h = made["hidden"]
    flags = {**made["flags"], **made["flags"].get("dflash_config", {})}
    sizes = {"fc.weight": (h, len(made["hidden_layers"]) * h), "hidden_norm.weight": (h,), "norm.weight": (h,)}
    for i in range(made["layers"]):
        sizes |= layer_sizes(made, i, h)
    if made["rank"]:
        sizes["markov_head.markov_w1.weight"] = (made["vocab"], made["rank"])
        sizes["markov_head.markov_w2.weight"] = (made["draft_vocab"], made["rank"])
    if flags.get("markov_head_type") == "gated":
        sizes |= {"markov_head.gate_proj.weight": (made["rank"], h + made["rank"])}
        sizes |= {"markov_head.gate_proj.bias": (made["rank"],)}
    if taps := flags.get("conv_kernel_size"):
        for name in [f"layers.{i}.{n}_conv" for i in range(made["layers"]) for n in ("attention", "mlp")]:
            sizes[f"{name}.base_kernel"] = (2, taps, h)
            sizes[f"{name}.kernel_projection.weight"] = (2 * taps * h // flags["conv_group_size"], h)
    if rank := flags.get("selector_rank"):
        codebooks = [f"candidate_selector.{n}_codebook" for n in ("predecessor", "successor")]
        sizes |= dict.fromkeys(codebooks, (made["vocab"], rank))
        sizes["candidate_selector.hidden_projection.weight"] = (rank, h)
    if "mask_embedding" in made["extras"]:
        sizes["mask_embedding"] = (h,)
    if "confidence" in made["extras"]:
        rank = made["rank"] if "markov confidence" in made["extras"] else 0
        sizes |= {"confidence_head.proj.weight": (1, h + rank), "confidence_head.proj.bias": (1,)}
    if "embedding" in made["extras"]:
        sizes["embed_tokens.weight"] = (made["vocab"], h)
    if "lm_head" in made["extras"] or made["draft_vocab"] < made["vocab"]:
        sizes["lm_head.weight"] = (made["draft_vocab"], h)
    return draw(sizes, made, seed, scale)


def write(folder, made, tensors, format_name):
    """Write the folder as the library of that name does."""
    has_markov = made["rank"] > 0 or made["is_anchored"]
    markov = {
        "markov_rank": made["rank"],
        "markov_head_type": "vanilla",
        "enable_confidence_head": "confidence" in made["extras"],
        "confidence_head_with_markov": "markov confidence" in made["extras"],
    }
    is_second = "selector_rank" in made["flags"]
    if format_name == SPECULATORS:
        name = "dflash2" if is_second else "dspark" if has_markov else "dflash"
        config = speculators_keys(made, name, "qwen3") | {
            "block_size": made["block"],
            "mask_token_id": made["mask_token"],
            "aux_hidden_state_layer_ids": list(made["hidden_layers"]),
            "sample_from_anchor": made["is_anchored"],
            "sliding_window_non_causal": False,
        }
    else:
        own = {"mask_token_id": made["mask_token"], "target_layer_ids": [i - 1 for i in made["hidden_layers"]]}
        config = {
            "architectures": ["Qwen3DSparkModel" if has_markov else f"DFlash{'2' * is_second}DraftModel"],
            "block_size": made["block"],
            **(own if has_markov else {"dflash_config": own}),
        } | layer_keys(made, "qwen3")
    return write_files(folder, config | (markov if has_markov else {}) | made["flags"], tensors)


def random_head(made):
    """The head of random tensors, by way of files."""
    tensors = random_tensors(made | {"extras": (*made["extras"], "embedding", "lm_head")})
    with TemporaryDirectory() as folder:
        return build_head(read_checkpoint(write(folder, made, tensors, SPECULATORS)))


class PlainDFlash(PlainHead):
    """A whole pass per text."""

    def __init__(self, made, tensors, target):
        super().__init__(made, tensors, target)
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
        values = values * self.flag("output_multiplier", 1)
        if cap := self.flag("final_logit_softcapping"):
            values = cap * torch.tanh(values / cap)
        return self.over_vocabulary(self._after(values, output, path[-1] if path else tokens[-1]))

    def _after(self, values, output, token):
        """Logits of a depth after the token before it, by a Markov head's bias or the selector's scores."""
        if self.made["rank"]:
            before = self.tensors["markov_head.markov_w1.weight"][token]
            if self.flag("markov_head_type") == "gated":
                gate = self.linear(torch.cat([output, before]), "markov_head.gate_proj")
                before = before / (1 + torch.exp(-gate))
            values = values + self.tensors["markov_head.markov_w2.weight"] @ before
        if self.flag("selector_rank"):
            first, second = (self.tensors[f"candidate_selector.{n}_codebook"] for n in ("predecessor", "successor"))
            hidden = self.linear(output, "candidate_selector.hidden_projection")
            best = values.sort(descending=True).indices[: self.flag("selector_top_k")].tolist()
            scores = {v: float(values[v] + sum(first[token] * hidden * second[v])) for v in best}
            values = torch.tensor([scores.get(v, -torch.inf) for v in range(len(values))], dtype=torch.float64)
        return values

    def _pass(self, states, anchor, first):
        """Outputs at all positions [K, H]."""
        context = self.norm(self.linear(states, "fc"), "hidden_norm")
        block = self.embedding[[anchor, *[self.made["mask_token"]] * (self.made["block"] - 1)]]
        if "mask_embedding" in self.tensors:
            block = torch.stack([self.tensors["mask_embedding"] if i else row for i, row in enumerate(block)])
        block = block * self.flag("input_embedding_scale", 1)
        for i in range(self.made["layers"]):
            name, is_seen = f"layers.{i}", partial(self._is_seen, i, len(context))
            normed = self.norm(block, f"{name}.input_layernorm")
            asking = self._convolved(normed, normed, f"{name}.attention_conv", 0)
            both = torch.cat([context, asking])
            mixed = self.attention(f"{name}.self_attn", asking, both, first + len(context), first, is_seen)
            block = block + self._convolved(mixed, normed, f"{name}.attention_conv", 1)
            normed = self.norm(block, f"{name}.post_attention_layernorm")
            mixed = self.mlp_of(self._convolved(normed, normed, f"{name}.mlp_conv", 0), name)
            block = block + self._convolved(mixed, normed, f"{name}.mlp_conv", 1)
        return self.norm(block, "norm")

    def _convolved(self, states, normed, name, side):
        """The states [K, H], or their convolution by the kernels that the normed input of the sublayer gives."""
        if f"{name}.base_kernel" not in self.tensors:
            return states
        base, size = self.tensors[f"{name}.base_kernel"][side], self.flag("conv_group_size")
        changes = self.linear(normed, f"{name}.kernel_projection").view(len(normed), 2, len(base), -1)[:, side]
        mixed = torch.zeros_like(states)
        for position, tap in [(i, t) for i in range(len(states)) for t in range(min(i + 1, len(base)))]:
            kernel = base[tap] + changes[position, tap].repeat_interleave(size)
            mixed[position] += kernel * states[position - tap]
        return mixed

    def _is_seen(self, layer, num_context, position, key):
        """Whether a position sees a key, counted over [context; block]."""
        kind = self.made["llama"].get("layer_types", [FULL] * self.made["layers"])[layer]
        is_two_way = self.flag("sliding_window_non_causal", self.flag("is_causal") is False)
        is_causal = self.flag("causal") or (kind == SLIDING and not is_two_way)
        kind = SLIDING if self.flag("use_swa") else kind
        if key >= num_context:
            return key - num_context <= position or not is_causal
        return kind == FULL or num_context - key <= self.flag(
            "swa_window_size", self.made["llama"].get("sliding_window")
        )
