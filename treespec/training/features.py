"""Training features of heads: a target's hidden states and next-token distributions, by plain passes over texts."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from treespec.errors import ConfigError, UnsupportedModelError
from treespec.hf.introspect import input_device, num_logits, pick_layers, text_modules
from treespec.training.text.texts import fingerprint

MAX_LOGITS = {"cpu": 2**26, "cuda": 2**29}
"""Logits of one pass, which bounds its memory."""

NUM_CANDIDATES = 64
"""The most probable tokens kept of every distribution."""


class Features(NamedTuple):
    """One text's features, on the CPU: the layers' concatenated states, and the most probable next tokens."""

    states: Tensor  # [T, Y]
    top_ids: Tensor  # int32 [T, k], best first
    top_probs: Tensor  # float16 [T, k]


class FeatureReader:
    """Reads texts with a model, which a `ConfigError` refuses in training mode.

    Args:
        hidden_layers: the hidden states to keep, see `HiddenStates`; empty for distributions alone.
        num_candidates: k.
        dtype: of the kept states; float16 overflows in models with massive activations.
        is_mixed: multiply in bfloat16.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        hidden_layers: Sequence[int],
        num_candidates: int = NUM_CANDIDATES,
        dtype: torch.dtype = torch.bfloat16,
        is_mixed: bool = False,
    ) -> None:
        if model.training:
            raise ConfigError(f"{type(model).__name__} is in training mode: call eval() on it first")
        self._model, self._hidden_layers = model, tuple(hidden_layers)
        self._dtype, self._is_mixed = dtype, is_mixed
        self.vocab_size = num_logits(model)
        self._num_candidates = min(num_candidates, self.vocab_size)
        width = len(self._hidden_layers) * model.config.get_text_config().hidden_size
        self.bytes_per_token = width * dtype.itemsize + 6 * self._num_candidates  # The size of its `Features`.
        self.settings = {
            "hidden_layers": list(self._hidden_layers),
            "num_candidates": self._num_candidates,
            "dtype": str(dtype),
            "is_mixed": is_mixed,
            "model": fingerprint(model),
        }

    def read_all(self, texts: Sequence[Tensor]) -> list[Features]:
        """Features of texts int64 [T], several texts per pass as long as the logits stay below `MAX_LOGITS`."""
        max_logits = MAX_LOGITS.get(input_device(self._model).type, MAX_LOGITS["cpu"])
        features: list[Features] = []
        group: list[Tensor] = []
        for text in texts:
            if group and (len(group) + 1) * max(map(len, [*group, text])) * self.vocab_size > max_logits:
                features += self._read(group)
                group = []
            group.append(text)
        return features + (self._read(group) if group else [])

    @torch.no_grad()
    def _read(self, texts: Sequence[Tensor]) -> list[Features]:
        device = input_device(self._model)
        ids = torch.nn.utils.rnn.pad_sequence(list(texts), batch_first=True)
        # Causal attention needs no mask here: padding on the right is seen by no token before it.
        options = {"output_hidden_states": bool(self._hidden_layers), "use_cache": False}
        with torch.autocast(device.type, torch.bfloat16, enabled=self._is_mixed):
            output = self._model(input_ids=ids.to(device), **options)
        layers = list(pick_layers(output, self._hidden_layers).values())
        states = torch.cat(layers or [output.logits[..., :0]], -1).to(self._dtype)
        top = output.logits.softmax(-1, dtype=torch.float32).topk(self._num_candidates)
        parts = zip(texts, states.cpu(), top.indices.int().cpu(), top.values.half().cpu(), strict=True)
        return [Features(s[: len(text)], i[: len(text)], p[: len(text)]) for text, s, i, p in parts]


def decoder_layers(model: PreTrainedModel) -> nn.ModuleList:
    """The outermost list of modules as long as the configuration's layers. Raises `UnsupportedModelError`: none."""
    count = getattr(model.config.get_text_config(), "num_hidden_layers", None)
    for module in text_modules(model).values():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return module
    raise UnsupportedModelError(f"{type(model).__name__} has no list of its {count} decoder layers: train a head")
