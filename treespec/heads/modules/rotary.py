"""Rotary position embeddings (RoFormer, Su et al. 2021) with the scalings that public checkpoints use."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from treespec.errors import CheckpointError

ROPE_TYPES = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"),
}
"""The types and what each reads besides `rope_theta` and `original_max_position_embeddings`."""


class Rotation(NamedTuple):
    """`cos` and `sin` [B, F, 1, r / 2] of the angles of every token's position, in the layers' dtype.

    The first r of a head's d numbers are rotated, all of them but for a partial rotary embedding.
    """

    cos: Tensor
    sin: Tensor


class Rotary(nn.Module):
    """Rotations by position, for heads of size d and a checkpoint trained for texts up to `max_positions`.

    `settings`: `rope_theta`, `rope_type` and what that type needs, as in transformers' `rope_parameters`, and perhaps
    `partial_rotary_factor`, the share of a head that is rotated.

    Raises `CheckpointError`: a type that is not one of `ROPE_TYPES`, or a setting that is missing or not a number.
    """

    inv_freq: Tensor

    def __init__(self, head_dim: int, settings: Mapping[str, Any], max_positions: int) -> None:
        super().__init__()
        if settings.get("rope_type") not in ROPE_TYPES:
            kind = settings.get("rope_type")
            raise CheckpointError(f"rope_type {kind!r} is not supported, only {', '.join(ROPE_TYPES)}")
        try:
            size = int(head_dim * float(settings.get("partial_rotary_factor", 1.0)))
            if not 0 < size <= head_dim or size % 2:
                raise ValueError(f"{size} of {head_dim} numbers cannot be rotated in pairs")
            frequencies, self._scale = _frequencies(size, settings, max_positions)
        except (KeyError, TypeError, ValueError, ArithmeticError) as error:
            reason = f"the rope settings {dict(settings)} lack a number or hold a wrong one: {error!r}"
            raise CheckpointError(reason) from error
        self.register_buffer("inv_freq", frequencies.float(), persistent=False)

    def forward(self, positions: Tensor, dtype: torch.dtype) -> Rotation:
        """The rotations of positions int64 [B, F]; angles are float32 whatever the layers' dtype is."""
        angles = (positions.unsqueeze(-1).float() * self.inv_freq.float()).unsqueeze(2)
        cos, sin = angles.cos(), angles.sin()
        if self._scale != 1:
            cos, sin = cos * self._scale, sin * self._scale
        return Rotation(cos.to(dtype), sin.to(dtype))


def rotate(states: Tensor, rotation: Rotation) -> Tensor:
    """Rotate queries or keys [B, F, A, d]; the first half of what is rotated pairs with the second."""
    cos, sin = rotation
    half = cos.shape[-1]
    first, second, rest = states.tensor_split([half, 2 * half], -1)
    turned = [first * cos - second * sin, second * cos + first * sin]
    return torch.cat([*turned, rest] if rest.shape[-1] else turned, -1)


def rope_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The `rope_parameters`, or `rope_theta` and `rope_scaling`. Raises `CheckpointError`: unsupported."""
    given = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(given, Mapping) or any(isinstance(value, Mapping) for value in given.values()):
        raise CheckpointError(f"rope settings must be one flat object for all layers, got {given!r}")
    settings = {"rope_theta": config.get("rope_theta", 10000.0), **given}
    kind = settings.get("rope_type") or settings.get("type") or "default"
    # M-RoPE turns some dimensions by a token's time, height or width: in text all three are its position.
    settings["rope_type"] = "default" if kind == "mrope" else kind
    share = settings.pop("partial_rotary_factor", None) or config.get("partial_rotary_factor") or 1.0
    return settings if share == 1 else settings | {"partial_rotary_factor": share}


def _frequencies(head_dim: int, settings: Mapping[str, Any], max_positions: int) -> tuple[Tensor, float]:
    """Inverse frequencies float64 [d / 2] and the factor on cosine and sine."""
    theta = float(settings["rope_theta"])
    kind = settings["rope_type"]
    plain = theta ** -(torch.arange(0, head_dim, 2, dtype=torch.float64, device="cpu") / head_dim)
    if kind == "default":
        return plain, 1.0
    if kind == "linear":
        return plain / float(settings["factor"]), 1.0
    if kind == "llama3":  # Long wavelengths are stretched, short ones kept, those between interpolated.
        factor, low, high = (float(settings[name]) for name in ("factor", "low_freq_factor", "high_freq_factor"))
        turns = float(settings["original_max_position_embeddings"]) * plain / (2 * math.pi)
        share = ((turns - low) / (high - low)).clamp(0, 1)
        return plain * (share + (1 - share) / factor), 1.0
    return _yarn(plain, head_dim, theta, settings, max_positions)


def _yarn(
    plain: Tensor, head_dim: int, theta: float, settings: Mapping[str, Any], max_positions: int
) -> tuple[Tensor, float]:
    """YaRN (Peng et al. 2023), section 3.4: a ramp over the dimensions, and a temperature on the attention."""
    original = float(settings.get("original_max_position_embeddings") or max_positions)
    factor = float(settings.get("factor") or max_positions / original)

    def dimension(turns: float) -> float:
        return head_dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low = dimension(float(settings.get("beta_fast") or 32))
    high = dimension(float(settings.get("beta_slow") or 1))
    if settings.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    span = high - low if high != low else 0.001
    stretched = ((torch.arange(head_dim // 2, dtype=torch.float64, device="cpu") - low) / span).clamp(0, 1)
    frequencies = plain * (1 - stretched) + plain / factor * stretched
    return frequencies, _yarn_scale(factor, settings)


def _yarn_scale(factor: float, settings: Mapping[str, Any]) -> float:
    given, scale, scale_all = (settings.get(name) for name in ("attention_factor", "mscale", "mscale_all_dim"))
    if given is not None:
        return float(given)

    def temperature(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1 if factor > 1 else 1.0

    if scale and scale_all:
        return temperature(float(scale)) / temperature(float(scale_all))
    return temperature(1.0)
