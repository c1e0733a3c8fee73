"""Prompts with images or sounds, read with the inputs that plain `generate` would give the model.

`generate` hands over what the model's own preparation made of the prompt: features, positions in several rows (M-RoPE),
types of tokens. The pass over the prompt gets all of it; nodes are text, which follows the prompt's last position.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jaxtyping import Int
from torch import Tensor
from transformers import Cache

from treespec.errors import UnsupportedModelError
from treespec.hf.cache.caches import filled_layers
from treespec.hf.cache.slot_cache import keep_paths
from treespec.hf.introspect import CACHE_ARGUMENTS, CACHE_NAME

_BY_TOKEN = {"input_ids", "attention_mask", "position_ids", "token_type_ids", "mm_token_type_ids"}
OUTPUTS = {"output_attentions", "output_hidden_states"}
_TEXT_ARGUMENTS = _BY_TOKEN | {"logits_to_keep", "use_cache"}


@dataclass(frozen=True)
class PromptInputs:
    """The inputs that `generate` prepared for the pass over the prompt.

    Attributes:
        ids: the prompt, placeholders included, left-padded.
        arguments: those for the model's `prepare_inputs_for_generation`, without the cache.
    """

    ids: Int[Tensor, "B P"]
    arguments: dict[str, object]

    @property
    def has_features(self) -> bool:
        """Whether there is anything in the prompt but text."""
        return any(name not in _TEXT_ARGUMENTS and _is_given(value) for name, value in self.arguments.items())

    def check_ends_in_text(self, config: Any, name: str) -> None:
        """Raise `UnsupportedModelError` where a row's last token stands for an image or a sound."""
        names = [f"{kind}_token_{suffix}" for kind in ("image", "video", "audio") for suffix in ("id", "index")]
        if not {getattr(config, name, None) for name in names}.isdisjoint(self.ids[:, -1].tolist()):
            raise UnsupportedModelError(f"{name} cannot continue this prompt: a prompt must end in text")

    def model_inputs(self, model: Any, cache: Cache, num_cached: int) -> dict[str, Any]:
        """The arguments of `forward` for the tokens that `cache` does not hold."""
        return model.prepare_inputs_for_generation(
            self.ids,
            next_sequence_length=self.ids.shape[1] - num_cached if num_cached else None,
            is_first_iteration=True,
            **{CACHE_NAME: cache},
            **self.arguments,
        )


def prompt_inputs(input_ids: Int[Tensor, "B P"], model_kwargs: Mapping[str, object]) -> PromptInputs:
    """The inputs with which plain `generate` reads the prompt, without the cache."""
    arguments = {name: value for name, value in model_kwargs.items() if name not in OUTPUTS.union(CACHE_ARGUMENTS)}
    return PromptInputs(input_ids, arguments)


def position_offsets(
    position_ids: Int[Tensor, "..."] | None, lengths: Int[Tensor, "B"]
) -> Int[Tensor, "*rows B"] | None:
    """How far the last of a pass's position ids [..., B or 1, <= P] is ahead of `lengths`, the tokens before it."""
    return None if position_ids is None else position_ids[..., -1] - lengths


def shifted(numbers: Int[Tensor, "B F"], offsets: Int[Tensor, "*rows B"] | None) -> Int[Tensor, "*rows B F"]:
    """The position ids of tokens by their numbers in their rows, see `position_offsets`."""
    return numbers if offsets is None else numbers + offsets.unsqueeze(-1)


def drop_last_token(cache: Cache, num_tokens: int, name: str) -> None:
    """Cut a cache of whole prompts to all but their last token.

    Raises `UnsupportedModelError`: a layer caches anything but the prompt's tokens, e.g. an image for cross-attention.
    """
    layers: list[Any] = list(filled_layers(cache))
    if any(int(layer.get_seq_length()) != num_tokens for layer in layers):
        raise UnsupportedModelError(
            f"{name} caches something other than the prompt's {num_tokens} tokens in some of its layers "
            "(cross-attention to images): its tokens cannot be verified ahead"
        )
    keep_paths(layers, 0, [range(num_tokens - 1)])  # Slots stay where they are: one path serves all rows.


def placeholder_ids(config: Any) -> set[int]:
    """The ids that stand for images and sounds in a prompt, by the configuration; some are outside the vocabulary."""
    settings = {name: value for name, value in vars(config).items() if name.endswith(("_token_id", "_token_index"))}
    return {value for value in settings.values() if isinstance(value, int)}


def _is_given(value: Any) -> bool:
    return value is not None and not (isinstance(value, dict) and not value)
