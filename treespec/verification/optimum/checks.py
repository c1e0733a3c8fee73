"""Whether what was given are distributions. Axis letter: V vocabulary."""

from __future__ import annotations

from torch import Tensor

from treespec.errors import ConfigError

_SUM_TOLERANCE = 0.01  # What half precision needs; logits and counts are far off.


def check_distributions(target_probs: Tensor, draft_probs: Tensor, k: int, may_be_empty: bool = False) -> None:
    """Raise unless both are distributions [..., V] of one shape and there are siblings; `draft_probs` may be empty: all
    zero.

    Raises:
        ConfigError: distributions that are none, shapes that differ, or k is no positive int.
    """
    check_distribution("target_probs", target_probs)
    check_distribution("draft_probs", draft_probs, may_be_empty)
    if target_probs.shape != draft_probs.shape or not isinstance(k, int) or k < 1:
        shapes = f"{list(target_probs.shape)}, {list(draft_probs.shape)}"
        raise ConfigError(f"expected distributions of one shape and a positive int k, got {shapes}, k={k!r}")


def check_distribution(name: str, probs: Tensor, may_be_empty: bool = False) -> None:
    """Raise unless `probs` holds distributions [..., V].

    Raises:
        ConfigError: no tensor, entries that are no floats or no probabilities, or sums that are not one.
    """
    if not isinstance(probs, Tensor):
        raise ConfigError(f"{name} must be a tensor of floats [..., V], got {type(probs).__name__}")
    if not probs.is_floating_point() or probs.ndim == 0 or probs.shape[-1] == 0:
        raise ConfigError(f"{name} must be floats [..., V], got {probs.dtype} {list(probs.shape)}")
    total = probs.double().sum(-1)
    # NaN fails every comparison, so `not (good)` rather than `bad`.
    is_distribution = (probs >= 0).all(-1) & (((total - 1).abs() <= _SUM_TOLERANCE) | ((total == 0) & may_be_empty))
    if not is_distribution.all():
        raise ConfigError(
            f"{name} must hold probabilities: entries from {float(probs.min()):.6g} to {float(probs.max()):.6g}, "
            f"sums from {float(total.min()):.6g} to {float(total.max()):.6g}. Pass probabilities, not logits"
        )
