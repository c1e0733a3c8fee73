"""From logits to tokens: processors along paths, distributions, draws from given uniforms."""

from treespec.sampling.draws import (
    MIN_SPARSE,
    draw_independent,
    draw_without_replacement,
    flatten_at_zeros,
    inverse_cdf,
    normalise,
    race,
    residual,
    truncate_probs,
)
from treespec.sampling.processors import NoProcessors, path_scores

__all__ = [
    "MIN_SPARSE",
    "NoProcessors",
    "draw_independent",
    "draw_without_replacement",
    "flatten_at_zeros",
    "inverse_cdf",
    "normalise",
    "path_scores",
    "race",
    "residual",
    "truncate_probs",
]
