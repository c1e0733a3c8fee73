"""The linear draft of classic speculative decoding, a tree of width one, of fixed length or stopped on the way."""

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from treespec.checks import AUTO, ShowsOptions, check_children, check_count
from treespec.errors import ConfigError
from treespec.policies.children import choose_children, resolve_children
from treespec.policies.growing import TreeBuilder
from treespec.policies.paths import Level, grow_shape
from treespec.protocols import DraftSource
from treespec.tree import TreeBatch

StopRule = Callable[[Tensor], Tensor]
"""Maps the draft's probabilities of a chain's tokens, float [B, L] on the host, to whether it ends there, bool [B].

A rule decides about the *next* token, so the last one stays whatever its probability: dropping it would select drawn
tokens by their probability and change the output distribution.
"""


class Chain(ShowsOptions):
    """k draft tokens, one after the other.

    `children` as for `Paths`; all that are sampled mean one draw here. `stop` ends rows early, e.g. `LowConfidence()`,
    which saves the draft passes that follow.

    Raises `ConfigError`: k is not a positive int, unknown children, or a stop rule that does not return bool [B].
    """

    def __init__(self, k: int, children: str = AUTO, stop: StopRule | None = None) -> None:
        self.k = check_count("k", k)
        self.max_nodes = k + 1
        self.children = check_children(children)
        if stop is not None and not callable(stop):
            raise ConfigError(f"stop must be a rule such as LowConfidence(), got {stop!r}")
        self._stop = stop

    def grow(self, source: DraftSource, max_depth: int) -> TreeBatch:
        if self._stop is None:
            return grow_shape([Level((0,), (1,))] * self.k, self.children, source, max_depth)
        return grow_until(self._stop, min(self.k, max_depth), self.children, source)


def grow_until(stop: StopRule, num_tokens: int, children: str, source: DraftSource) -> TreeBatch:
    """Chains that end after the token at which `stop` says so, or after `num_tokens`.

    Rows that have ended continue with the others and are cut at the end: it costs no pass, leaves no holes for sources
    that run chains only, and keeps a row's draws independent of where other rows end. The cut is lossless: it depends
    on earlier tokens only.
    """
    builder = TreeBuilder(source)
    nodes = builder.root
    is_open = np.ones(builder.root.shape, np.bool_)
    keep = [is_open]
    token_probs = builder.values[:, :0]
    for _ in range(num_tokens):
        proposal = builder.expand(nodes)
        resolved = resolve_children(children, proposal, source.is_sampling)
        chosen = choose_children(proposal, [1], resolved, source.generator)
        probs = chosen.probs[..., 0]
        values = builder.take(builder.values, nodes) * probs
        nodes = builder.add(nodes, chosen, values[..., None], np.zeros(1, np.int64))
        keep.append(is_open)
        token_probs = np.concatenate([token_probs, probs.astype(token_probs.dtype)], 1)
        is_open = is_open & ~_is_ended(stop, torch.from_numpy(token_probs)).numpy()[:, None]
        if builder.is_exhausted(nodes) or not is_open.any():
            break
    return builder.build(np.concatenate(keep, 1))


def _is_ended(stop: StopRule, token_probs: Float[Tensor, "B L"]) -> Bool[Tensor, "B"]:
    """The chains that end here."""
    is_ended = stop(token_probs)
    if not isinstance(is_ended, Tensor) or is_ended.shape != token_probs.shape[:1] or is_ended.dtype != torch.bool:
        got = f"{is_ended.dtype} {list(is_ended.shape)}" if isinstance(is_ended, Tensor) else repr(is_ended)
        raise ConfigError(f"a stop rule must return bool [{len(token_probs)}], one per row, got {got}")
    return is_ended
