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
    """What a head is made of; `extras` names what not every file has, `flags` further configuration keys.

    `hidden_layers` are indices of the target's hidden states; `is_anchored`: position 0 of a block guesses too.
    """
    sizes = {"vocab": 64, "draft_vocab": 40, "hidden": 32, "intermediate": 40, "heads": 4, "key_heads": 2}
    sizes |= {"head_dim": 6, "layers": 2, "hidden_layers": (1, 2), "block": 4, "mask_token": 63}
    return sizes | {"is_anchored": False, "rank": 0, "extras": ("head_norms",), "flags": {}, "llama": {}} | options


def dspark(**options):
    """The shape of a head with DSpark's additions."""
    extras = ("head_norms", "confidence", "markov confidence")
    return shape(**{"is_anchored": True, "rank": 5, "block": 3, "extras": extras} | options)


def random_tensors(made, seed=0, scale=0.5):
    h = made["hidden"]
    sizes = {"fc.weight": (h, len(made["hidden_layers"]) * h), "hidden_norm.weight": (h,), "norm.weight": (h,)}
    for i in range(made["layers"]):
        sizes |= layer_sizes(made, i, h)
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
    if format_name == SPECULATORS:
        config = speculators_keys(made, "dspark" if has_markov else "dflash", "qwen3") | {
            "block_size": made["block"],
            "mask_token_id": made["mask_token"],
            "aux_hidden_state_layer_ids": list(made["hidden_layers"]),
            "sample_from_anchor": made["is_anchored"],
            "sliding_window_non_causal": False,
        }
    else:
        own = {"mask_token_id": made["mask_token"], "target_layer_ids": [i - 1 for i in made["hidden_layers"]]}
        config = {
            "architectures": ["Qwen3DSparkModel" if has_markov else "DFlashDraftModel"],
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
        values = self.lm_head @ self._outputs[key][len(path) + (0 if self.made["is_anchored"] else 1)]
        values = values * self.flag("output_multiplier", 1)
        if cap := self.flag("final_logit_softcapping"):
            values = cap * torch.tanh(values / cap)
        if self.made["rank"]:
            before = self.tensors["markov_head.markov_w1.weight"][path[-1] if path else tokens[-1]]
            values = values + self.tensors["markov_head.markov_w2.weight"] @ before
        return self.over_vocabulary(values)

    def _pass(self, states, anchor, first):
        """Outputs at all positions [K, H]."""
        context = self.norm(self.linear(states, "fc"), "hidden_norm")
        block = self.embedding[[anchor, *[self.made["mask_token"]] * (self.made["block"] - 1)]]
        block = block * self.flag("input_embedding_scale", 1)
        for i in range(self.made["layers"]):
            name, is_seen = f"layers.{i}", partial(self._is_seen, i, len(context))
            normed = self.norm(block, f"{name}.input_layernorm")
            both = torch.cat([context, normed])
            mixed = self.attention(f"{name}.self_attn", normed, both, first + len(context), first, is_seen)
            block = self.mlp(block + mixed, name)
        return self.norm(block, "norm")

    def _is_seen(self, layer, num_context, position, key):
        """Whether a position sees a key, counted over [context; block]."""
        kind = self.made["llama"].get("layer_types", [FULL] * self.made["layers"])[layer]
        is_causal = self.flag("causal") or (kind == SLIDING and not self.flag("sliding_window_non_causal"))
        kind = SLIDING if self.flag("use_swa") else kind
        if key >= num_context:
            return key - num_context <= position or not is_causal
        return kind == FULL or num_context - key <= self.flag(
            "swa_window_size", self.made["llama"].get("sliding_window")
        )
