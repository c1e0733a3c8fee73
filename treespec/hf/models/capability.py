"""What a model can verify in one pass, told from its configuration, its cache layers and a few tokens of its own."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DummyLayer, DynamicLayer, DynamicSlidingWindowLayer

from treespec.errors import TreespecError, TreespecWarning, UnsupportedModelError
from treespec.hf.introspect import cache_argument, input_device
from treespec.hf.models.recurrent_scorer import RecurrentScorer
from treespec.protocols import Capability

_NUM_PROMPT, _NUM_CHAIN = 12, 4
_ROUNDING, _BROKEN = 1e-3, 0.25
"""Differences of cached from uncached passes, in standard deviations of the logits: always allowed, never explained."""
_TOKEN_LAYERS = (DynamicLayer, DynamicSlidingWindowLayer, DummyLayer)


class Detection(NamedTuple):
    """What a model can verify, and why not trees (empty when it can)."""

    capability: Capability
    reason: str


def detect(model: PreTrainedModel) -> Detection:
    """Find out what a model can verify. An unknown attention model counts as TREE; a self-check has the last word.

    Models that keep a state are tried once with a few tokens: some continue their cache with several tokens in one
    pass (CHAIN), others only with one (PLAIN).

    Raises:
        UnsupportedModelError: an encoder-decoder model, one that is not causal, or one that does not keep its state
            in a transformers cache.
    """
    known = _detected.get(model)
    if known is None:
        known = _detected[model] = _detect(model)
    return known


def keeps_states(model: PreTrainedModel) -> bool:
    """Whether any layer's cache is something else than one entry per token, so that no node can be dropped from it."""
    return any(type(layer) not in _TOKEN_LAYERS for layer in DynamicCache(config=model.config).layers)


def warn_once(model: PreTrainedModel, detection: Detection) -> None:
    """Say, once per model type, that a model does not decode by trees and why."""
    model_type = model.config.get_text_config().model_type
    if detection.capability == Capability.TREE or (model_type, detection) in _said:
        return
    _said.add((model_type, detection))
    ways = {Capability.CHAIN: "by chains", Capability.PLAIN: "one token at a time"}
    message = f"{type(model).__name__} ({model_type}) decodes {ways[detection.capability]} because {detection.reason}"
    warnings.warn(message, TreespecWarning, stacklevel=3)


@contextmanager
def undisturbed(model: PreTrainedModel) -> Iterator[None]:
    """Evaluation mode and no gradients inside; training flags and random states as before outside."""
    training = [module for module in model.modules() if module.training]
    device = input_device(model)
    with torch.no_grad(), torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        for module in training:
            module.training = False
        try:
            yield
        finally:
            for module in training:
                module.training = True


_detected: WeakKeyDictionary[PreTrainedModel, Detection] = WeakKeyDictionary()
_said: set[tuple[str, Detection]] = set()


def _detect(model: PreTrainedModel) -> Detection:
    try:
        with undisturbed(model):
            return _probe(model)
    except (TreespecError, torch.OutOfMemoryError):
        raise
    except (RuntimeError, ValueError, TypeError, AttributeError, LookupError) as error:
        name = type(model).__name__
        raise UnsupportedModelError(f"{name} fails on a few tokens with a transformers cache: {error}") from error


def _probe(model: PreTrainedModel) -> Detection:
    _check_causal(model)
    if not keeps_states(model):
        return Detection(Capability.TREE, "")
    kinds = sorted({type(layer).__name__ for layer in DynamicCache(config=model.config).layers})
    differences = _differences(model)
    if differences.one_by_one > _BROKEN:
        raise UnsupportedModelError(
            f"{type(model).__name__} keeps a state outside its cache: texts that are decoded side by side get mixed up"
        )
    if differences.at_once <= max(10 * differences.one_by_one, _ROUNDING):
        return Detection(Capability.CHAIN, f"its cache keeps states that mix siblings ({', '.join(kinds)})")
    return Detection(Capability.PLAIN, f"it continues its cache rightly with single tokens only ({', '.join(kinds)})")


def _check_causal(model: PreTrainedModel) -> None:
    name, config = type(model).__name__, model.config
    if getattr(config, "is_encoder_decoder", False):
        raise UnsupportedModelError(f"{name} is an encoder-decoder model: only decoder-only causal models are served")
    if model.get_output_embeddings() is None:
        raise UnsupportedModelError(f"{name} has no language modelling head: load it with AutoModelForCausalLM")
    cache_argument(model)
    if _looks_ahead(model):
        raise UnsupportedModelError(f"{name} attends in both directions: if it can, load it with is_decoder=True")


def _looks_ahead(model: PreTrainedModel) -> bool:
    """Whether a token changes the logits of those before it (causal gpt_neox has `is_decoder=False` all the same)."""
    last = torch.tensor([[3], [4]], device=input_device(model)) % model.config.get_text_config().vocab_size
    ids = torch.cat([_probe_ids(model, 1, 4).expand(2, -1), last], dim=1)
    logits = model(input_ids=ids, use_cache=False).logits[:, :-1].float()
    # The rows go through one pass, but mixtures of experts sum them in another order: rounding is no sight.
    rounding = 0.01 if model.dtype in (torch.float32, torch.float64) else 0.1
    return bool((logits[0] - logits[1]).abs().max() > rounding * logits.std())


class _Differences(NamedTuple):
    """The largest differences of cached from uncached passes, in standard deviations of the logits."""

    one_by_one: float
    at_once: float


def _differences(model: PreTrainedModel) -> _Differences:
    ids = _probe_ids(model, 2, _NUM_PROMPT + _NUM_CHAIN)
    expected = model(input_ids=ids, use_cache=False).logits[:, _NUM_PROMPT:].float()
    found = (_score(model, ids, capability) for capability in (Capability.PLAIN, Capability.CHAIN))
    return _Differences(*(float((logits - expected).abs().max() / expected.std()) for logits in found))


def _probe_ids(model: PreTrainedModel, num_rows: int, length: int) -> Tensor:
    """Different tokens that most vocabularies have: int64 [num_rows, length]."""
    size = model.config.get_text_config().vocab_size
    rows = [[(7 * i + 11 * row + 3) % size for i in range(length)] for row in range(num_rows)]
    return torch.tensor(rows, device=input_device(model))


def _score(model: PreTrainedModel, ids: Tensor, capability: Capability) -> Tensor:
    """Logits float [2, 4, V] of the last tokens int64 [2, 16], scored from the caches of the others."""
    scorer = RecurrentScorer(model, capability=capability)
    prompt, chain = ids.split((_NUM_PROMPT, _NUM_CHAIN), dim=1)
    scorer.prefill(prompt, torch.ones_like(prompt, dtype=torch.bool))
    parents = torch.arange(-1, _NUM_CHAIN - 1).expand(len(ids), -1)
    width = 1 if capability == Capability.PLAIN else _NUM_CHAIN
    parts = zip(chain.split(width, dim=1), parents.split(width, dim=1), strict=True)
    return torch.cat([scorer.extend(tokens, above).logits for tokens, above in parts], dim=1).float()
