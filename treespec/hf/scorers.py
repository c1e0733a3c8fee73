"""`make_scorer`: the scorer that fits a model, for what the model is found to score rightly."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from transformers import Cache, PreTrainedModel

from treespec.errors import UnsupportedModelError
from treespec.hf.cache import is_filled
from treespec.hf.capability import detect, keeps_states, warn_once
from treespec.hf.causal_lm import CausalLM
from treespec.hf.facts import check_model, plain_model
from treespec.hf.recurrent import RecurrentLM
from treespec.hf.selfcheck import Candidate, check_once
from treespec.protocols import Capability

AnyScorer = CausalLM | RecurrentLM


def make_scorer(
    model: PreTrainedModel,
    *,
    cache: Cache | None = None,
    max_cache_len: int | None = None,
    hidden_layers: Sequence[int] = (),
) -> AnyScorer:
    """The scorer that fits a model, for what the model is found to score rightly.

    At a model's first use a few passes over a few tokens compare tree logits with path logits (see `selfcheck`); when
    they differ the scorer's capability is less, and a `TreespecWarning` says so once.

    Args:
        model, cache, max_cache_len, hidden_layers: see `CausalLM`.

    Raises:
        ConfigError: something that is no model.
        UnsupportedModelError: not a causal model with a transformers cache, a given cache that cannot be continued, or
            a model that cannot verify trees from a static cache.
    """
    check_model(model)
    compiled, model = model, plain_model(model)
    detection = detect(model)
    is_static = max_cache_len is not None
    if keeps_states(model):
        warn_once(model, detection)
        if is_static or (cache is not None and is_filled(cache)):
            raise UnsupportedModelError(f"{type(model).__name__} keeps a state: it takes no static and no filled cache")
        return RecurrentLM(model, capability=detection.capability, hidden_layers=hidden_layers)
    found = check_once(model, _modes(model), is_static)
    if is_static and found.capability != Capability.TREE:
        raise UnsupportedModelError(
            f"{type(model).__name__} is not known to score rightly from a static cache ({found.reason}): leave out "
            "cache_implementation='static'"
        )
    return CausalLM(
        compiled,
        capability=found.capability,
        cache=cache,
        max_cache_len=max_cache_len,
        hidden_layers=hidden_layers,
    )


def _modes(model: PreTrainedModel) -> list[Candidate]:
    """What to try on a model, the most capable first."""
    return [(mode, partial(CausalLM, model, capability=mode)) for mode in (Capability.TREE, Capability.CHAIN)]
