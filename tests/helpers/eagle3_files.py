"""Random EAGLE-3 and P-EAGLE heads written in both public formats, and a slow plain reading of the same files."""

from typing import Any

import torch
from helpers.head_files import SPECULATORS, PlainHead, draw, layer_keys, layer_sizes, speculators_keys, write_files

SAFEAILAB = "safeailab"


def shape(**options):
    """Sizes and options of a head; `extras` names what not every file has, `flags` further configuration keys.

    `hidden_layers` are indices of the target's hidden states, which the files leave open.
    """
    sizes = {"vocab": 64, "draft_vocab": 40, "hidden": 24, "target_hidden": 32, "intermediate": 40, "heads": 4}
    sizes |= {"key_heads": 2, "head_dim": 6, "layers": 1, "hidden_layers": (1, 2, 0)}
    return sizes | {"extras": (), "flags": {}, "llama": {}} | options


def parallel(**options):
    """The shape of a P-EAGLE head: with a mask token, and the depths that a pass drafts."""
    return shape(**{"hidden": 32, "mask_token": 63, "num_depths": 4, "layers": 2} | options)


def random_tensors(made, seed=0, scale=0.5):
    """Tensors in the speculators format's names."""
    h, num_features = made["hidden"], len(made["hidden_layers"])
    fused = num_features * made["target_hidden"]
    sizes = {"fc.weight": (h, fused), "norm.weight": (h,), "lm_head.weight": (made["draft_vocab"], h)}
    for i in range(made["layers"]):
        sizes |= layer_sizes(made, i, h if i else 2 * h)
    sizes["layers.0.hidden_norm.weight"] = (h,)
    if made["flags"].get("fc_norm"):
        sizes |= {f"fc_norm.{i}.weight": (made["target_hidden"],) for i in range(num_features)}
    if made["flags"].get("norm_before_fc"):
        sizes["input_norm.weight"] = (fused,)
    if "no lm_head" in made["extras"]:
        del sizes["lm_head.weight"]
    if "mask_token" in made:
        sizes["mask_hidden"] = (1, 1, fused)
    if "embedding" in made["extras"]:
        sizes["embed_tokens.weight"] = (made["vocab"], h)
    return draw(sizes, made, seed, scale)


def write(folder, made, tensors, format_name):
    """Write the folder as the library of that name does."""
    own = {"draft_vocab_size": made["draft_vocab"], "target_hidden_size": made["target_hidden"]} | made["flags"]
    if format_name == SPECULATORS:
        config = {"architectures": ["Eagle3Speculator"]} | speculators_keys(made, "eagle3", "llama")
        config |= {"norm_before_residual": False} | own
        if "mask_token" in made:
            methods = [{"proposal_type": "greedy", "speculative_tokens": made["num_depths"]}]
            config |= {"speculators_model_type": "peagle", "mask_token_id": made["mask_token"]}
            config["speculators_config"] |= {"algorithm": "peagle", "proposal_methods": methods}
    else:
        config = {"architectures": ["LlamaForCausalLM"]} | layer_keys(made, "llama") | own
        if "mask_token" in made:
            config |= {"pard_token": made["mask_token"], "parallel_drafting": True}
        tensors = {name.replace("layers.0.", "midlayer."): tensor for name, tensor in tensors.items()}
    return write_files(folder, config, tensors)


class PlainEagle3(PlainHead):
    """Every pass reads the whole text again."""

    _text: Any = None

    def logits(self, states, tokens, path, first=0):
        """float64 [V] after the drafted tokens `path`, -inf outside the draft vocabulary.

        states: [n - 1 - first, features * J], the target's before each of `tokens[first + 1:]`; positions from `first`.
        """
        if self._text is not states:
            self._text, self._passes = states, {}
        _, output = self._pass(tuple(path), tokens[first + 1 :], first)
        return self.over_vocabulary(self.lm_head @ self._read(output)[0])

    def _read(self, output):
        """The output head's input."""
        return self.norm(output, "norm")

    def _pass(self, path, text, first):
        """The features that a pass reads and its last output [1, H]; passes are kept, as siblings have one parent."""
        if path not in self._passes:
            if path:
                features, output = self._pass(path[:-1], text, first)
                normed = self.norm(output, "norm") if self.made["flags"].get("norm_output") else output
                features = torch.cat([features, normed])
            else:
                features = self._fuse(self._text.double())
            self._passes[path] = features, self._layers(features, [*text, *path], first)[-1:]
        return self._passes[path]

    def _fuse(self, states):
        flags, parts = self.made["flags"], states.split(self.made["target_hidden"], -1)
        if flags.get("fc_norm"):
            states = torch.cat([self.norm(part, f"fc_norm.{i}") for i, part in enumerate(parts)], -1)
        if flags.get("norm_before_fc"):
            states = self.norm(states, "input_norm")
        return self.linear(states, "fc")

    def _layers(self, states, tokens, first):
        window = self.made["llama"].get("sliding_window", len(tokens))
        for i in range(self.made["layers"]):
            name = f"layers.{i}"
            if i == 0:
                states, inputs = self._first_inputs(states, tokens)
            else:
                inputs = self.norm(states, f"{name}.input_layernorm")
            mixed = self.attention(
                f"{name}.self_attn", inputs, inputs, first, first, lambda query, key: 0 <= query - key < window
            )
            states = self.mlp(states + mixed, name)
        return states

    def _first_inputs(self, states, tokens):
        """The first layer's residual, and what its attention reads."""
        normed = self.norm(states, "layers.0.hidden_norm")
        embedded = self.norm(self.embedding[tokens], "layers.0.input_layernorm")
        residual = normed if self.made["flags"].get("norm_before_residual") else states
        return residual, torch.cat([embedded, normed], -1)


class PlainPEagle(PlainEagle3):
    """A whole pass per depth, with mask tokens for those above."""

    def logits(self, states, tokens, path, first=0):
        """See `PlainEagle3`; only how many tokens `path` has matters."""
        masks = self.tensors["mask_hidden"].view(1, -1).expand(len(path), -1)
        read = [*tokens[first + 1 :], *[self.made["mask_token"]] * len(path)]
        output = self._layers(self._fuse(torch.cat([states.double(), masks])), read, first)[-1]
        return self.over_vocabulary(self.lm_head @ self.norm(output, "norm"))
