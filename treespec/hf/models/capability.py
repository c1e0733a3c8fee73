"""Detection of a model's `Capability` from its configuration, its cache layers and passes over a few tokens."""

import threading
import warnings
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from treespec.errors import TreespecError, TreespecWarning, UnsupportedModelError
from treespec.hf.add_ons import RARE
from treespec.hf.attention.folded import plain_implementation
from treespec.hf.attention.rope_lengths import RopeByLength
from treespec.hf.cache.caches import DummyLayer
from treespec.hf.evaluation import evaluation_mode
from treespec.hf.introspect import ModelFacts, is_multimodal, model_facts
from treespec.hf.models.recurrent_scorer import RecurrentScorer
from treespec.protocols import Capability

_NUM_PROMPT, _NUM_CHAIN = 12, 4
_NUM_PREFIX, _NUM_SUFFIXES = 6, 4
_ROUNDING, _LOW_PRECISION, _BROKEN = 1e-3, 0.03, 0.25
"""Differences of cached from uncached passes, in standard deviations of the logits: always allowed, allowed in half
precision, always wrong."""
_CHAIN_FACTOR = 2.0
"""Chains that are right differ from uncached passes by no more than single tokens do; wrong ones by 5 times as much."""
_FULL_PRECISION = (torch.float32, torch.float64)
_PLAIN_LAYERS = {("Linear", "Parameter")}
_TOKEN_LAYERS = (DynamicLayer, DynamicSlidingWindowLayer, DummyLayer)


class Detection(NamedTuple):
    """The capability that a model was found to have, and why it is not more (empty when it can verify trees)."""

    capability: Capability
    reason: str = ""
    tolerance: float = 0.0  # The self-check's tolerance for rounding, in standard deviations of the logits.
    has_prefix: bool = False
    """The prompt's tokens attend each other in both directions (PaliGemma); later ones only backwards."""


Found = TypeVar("Found")


class MeasuredOnce(Generic[Found]):
    """Measurements of models: once per model, its `variant` and a further key; other threads wait for them."""

    def __init__(self) -> None:
        self.by_model: WeakKeyDictionary[PreTrainedModel, dict[Hashable, Found]] = WeakKeyDictionary()

    def get(self, facts: ModelFacts, measure: Callable[[], Found], *key: Hashable) -> Found:
        """The result of `measure`, of this call or an earlier one; it runs `undisturbed`."""
        known = self.by_model.setdefault(facts.model, {})
        whole = (variant(facts), *key)
        if whole not in known:
            with undisturbed(facts):
                if whole not in known:
                    known[whole] = measure()
        return known[whole]


_detected: MeasuredOnce[Detection] = MeasuredOnce()
_said: set[tuple[str, str]] = set()
_lock = threading.Lock()
_measuring: WeakKeyDictionary[PreTrainedModel, threading.RLock] = WeakKeyDictionary()


def detect(model: PreTrainedModel | ModelFacts) -> Detection:
    """Find out what a model can verify. An unknown attention model counts as TREE; the self-check decides.

    Some models with states continue their cache with several tokens in one pass (CHAIN), others only with one (PLAIN).
    `UnsupportedModelError` for a model that is not causal, or has an encoder, or a cache of an unknown kind.
    """
    facts = model_facts(model)
    try:
        return _detected.get(facts, lambda: _probe(facts))
    except (TreespecError, torch.OutOfMemoryError):
        raise
    except (RuntimeError, ValueError, TypeError, AttributeError, LookupError) as error:
        what = f"{type(error).__name__}: {error}"  # A KeyError's own text is the key alone.
        failure = f"{facts.name} fails on a few tokens with a transformers cache: {what}"
        raise UnsupportedModelError(failure) from error


def variant(facts: ModelFacts) -> Hashable:
    """Properties of a model that change its numbers and may be set in place; measurements hold for one variant."""
    return facts.dtype, plain_implementation(facts.config), facts.adapters, facts.weights, facts.hooks


def keeps_states(model: Any) -> bool:
    """Whether a layer's cache is anything other than one entry per token, so that no node can be dropped from it."""
    has_own_cache = model._is_stateful and not model._supports_default_dynamic_cache()
    return has_own_cache or any(type(layer) not in _TOKEN_LAYERS for layer in DynamicCache(config=model.config).layers)


def num_indexed(facts: ModelFacts) -> int | None:
    """How many cached tokens a layer attends to at most where scores of an index choose them; None: no layer does so.

    Which tokens have the highest scores hangs on rounding: another grouping of tokens into passes may choose others.
    """
    indexers = [vars(module) for name, module in facts.modules.items() if name.rpartition(".")[2] == "indexer"]
    sizes = [
        own.get("index_topk") or own.get("token_budget") or own.get("topk_blocks", 0) * own.get("block_size", 0)
        for own in indexers
    ]
    return min(sizes, default=None)


def warn_once(facts: ModelFacts, detection: Detection) -> None:
    """Warn, once per model type, that a model does not decode by trees, and why."""
    ways = {Capability.CHAIN: "by chains", Capability.PLAIN: "one token at a time"}
    if detection.capability in ways:
        warn(facts, f"decodes {ways[detection.capability]} because {detection.reason}")


def warn(facts: ModelFacts, message: str) -> None:
    """Warn about a model, once per model type and message."""
    key = (facts.config.model_type, message)
    if key not in _said:
        _said.add(key)
        warnings.warn(f"{facts.name} ({facts.config.model_type}) {message}", TreespecWarning, stacklevel=4)


@contextmanager
def undisturbed(facts: ModelFacts) -> Iterator[None]:
    """Evaluation mode and no gradients inside; training flags and random states as before outside.

    So is what a model with M-RoPE keeps from prompt to prompt: how far images move the positions of the text after.
    One thread at a time measures a model, the others wait; rope frequencies are apart from those of other threads.
    """
    with _lock:
        measuring = _measuring.setdefault(facts.model, threading.RLock())
    devices = [facts.device] if facts.device.type == "cuda" else []
    modules: list[Any] = [module for module in facts.modules.values() if hasattr(module, "rope_deltas")]
    apart = RopeByLength(facts.model, facts.modules).apart()
    with measuring, torch.no_grad(), torch.random.fork_rng(devices=devices), evaluation_mode(facts.model), apart:
        kept = [module.rope_deltas for module in modules]
        for module in modules:
            module.rope_deltas = None
        try:
            yield
        finally:
            for module, deltas in zip(modules, kept, strict=True):
                module.rope_deltas = deltas


def _probe(facts: ModelFacts) -> Detection:
    has_prefix = _looks_ahead(facts)
    # Elsewhere a self-check that passes by its least tolerance shows that neighbours have no effect.
    is_plain = facts.dtype in _FULL_PRECISION or facts.weights <= _PLAIN_LAYERS
    is_presumed = has_prefix or (is_plain and not _sorts_out_columns(facts))
    if not is_presumed and (found := single_tokens_only(facts)) is not None:
        return found
    if not keeps_states(facts.model):
        return Detection(Capability.TREE, has_prefix=has_prefix)
    kinds = ", ".join(sorted({type(layer).__name__ for layer in DynamicCache(config=facts.model.config).layers}))
    ids = _probe_ids(facts, 2, _NUM_PROMPT + _NUM_CHAIN)
    size = num_indexed(facts)
    if size is not None and size < ids.shape[1]:
        return Detection(Capability.PLAIN, f"its layers attend to {size} tokens only, which rounding decides ({kinds})")
    expected = facts.model(input_ids=ids, use_cache=False).logits[:, _NUM_PROMPT:].float()
    one_by_one, at_once = (
        float((cached_logits(facts, ids, capability, _NUM_CHAIN) - expected).abs().max() / expected.std())
        for capability in (Capability.PLAIN, Capability.CHAIN)
    )
    rounding = _ROUNDING if facts.dtype in _FULL_PRECISION else _LOW_PRECISION
    if max(one_by_one, at_once) > rounding:
        single_tokens_only(facts)  # An error where neighbours have an effect.
    if one_by_one > _BROKEN:
        raise UnsupportedModelError(f"{facts.name} keeps a state outside its cache, which mixes the rows' texts")
    if at_once <= max(_CHAIN_FACTOR * one_by_one, rounding):
        return Detection(Capability.CHAIN, f"its cache keeps states that mix siblings ({kinds})")
    return Detection(Capability.PLAIN, f"it continues its cache rightly with single tokens only ({kinds})")


def single_tokens_only(facts: ModelFacts) -> Detection | None:
    """Why no pass over several tokens can have plain decoding's numbers, whatever the mask; None where one can.

    Raises `UnsupportedModelError`: such a model keeps a state too.
    """
    effect = neighbour_effect(facts)
    if _sorts_out_columns(facts):
        reason = (
            "LLM.int8() sorts out columns by all tokens that share a pass, so that its logits depend on them: "
            "llm_int8_threshold=0.0 quantises token by token"
        )
    elif effect <= _largest_neighbour_effect(facts):
        return None
    else:
        reason = (
            f"its logits depend on which tokens share a pass, by up to {effect:.2g} standard deviations "
            f"({_quantised_layers(facts)}); layers that quantise token by token, such as torchao's, have no such fault"
        )
    if keeps_states(facts.model):
        raise UnsupportedModelError(f"{facts.name} keeps a state, and {reason}: use its own generate")
    return Detection(Capability.PLAIN, reason)


def _looks_ahead(facts: ModelFacts) -> bool:
    """Whether a token changes the logits before it; raises for a text model that does, and for one without a head."""
    name = facts.name
    model = facts.model
    if model.get_output_embeddings() is None:
        raise UnsupportedModelError(f"{name} has no language modelling head: load it with AutoModelForCausalLM")
    _ = facts.cache_argument  # Reading it checks that the model takes a cache.
    # `is_decoder` does not say: causal gpt_neox has it False.
    last = torch.tensor([[3], [4]], device=facts.device) % facts.config.vocab_size
    ids = torch.cat([_probe_ids(facts, 1, 4).expand(2, -1), last], dim=1)
    logits = facts.model(input_ids=ids, use_cache=False).logits[:, :-1].float()
    # The rows share one pass, but mixtures of experts sum them in another order: a rounding difference is allowed.
    rounding = 0.01 if facts.dtype in _FULL_PRECISION else 0.1
    looks_ahead = bool((logits[0] - logits[1]).abs().max() > rounding * logits.std())
    if looks_ahead and not is_multimodal(model):
        raise UnsupportedModelError(f"{name} attends in both directions: if it can, load it with is_decoder=True")
    return looks_ahead


def neighbour_effect(facts: ModelFacts) -> float:
    """By how much a token's logits change with the tokens after it in its pass, in standard deviations of the logits.

    Passes of one shape: a causal model has the same numbers to the last bit, a mixture of experts up to rounding.
    Layers that round all activations of a pass by one scale (PyTorch's dynamic int8), or that choose columns by all of
    them (LLM.int8()), have not.
    """
    rows = _probe_ids(facts, _NUM_SUFFIXES, _NUM_PROMPT + _NUM_CHAIN)
    rows[:, :_NUM_PREFIX] = rows[0, :_NUM_PREFIX]
    first, *others = (facts.model(input_ids=row[None], use_cache=False).logits[0, :_NUM_PREFIX].float() for row in rows)
    return max(float((other - first).abs().max() / first.std()) for other in others)


def _largest_neighbour_effect(facts: ModelFacts) -> float:
    """The largest effect that rounding explains: most in low precision, where an expert's choice may hang on it."""
    if facts.dtype in _FULL_PRECISION:
        return _ROUNDING
    return _LOW_PRECISION if getattr(facts.model, "quantization_method", None) else _BROKEN


def _sorts_out_columns(facts: ModelFacts) -> bool:
    """bitsandbytes' int8 layers do where an activation is large, which a few tokens need not show."""
    states = [getattr(module, "state", None) for module in facts.modules.values()]
    return any(getattr(state, "threshold", 0) and hasattr(state, "CB") for state in states)


def _quantised_layers(facts: ModelFacts) -> str:
    kinds = {type(module) for module in facts.modules.values() if hasattr(module, "in_features")} - {torch.nn.Linear}
    return ", ".join(sorted(kind.__name__ + " of " + kind.__module__ for kind in kinds)) or "in its layers"


def _probe_ids(facts: ModelFacts, num_rows: int, length: int) -> Int[Tensor, "B L"]:
    """Different tokens that most vocabularies have."""
    rows = [[(7 * i + 11 * row + 3) % facts.config.vocab_size for i in range(length)] for row in range(num_rows)]
    return torch.tensor(rows, device=facts.device)


def cached_logits(
    facts: ModelFacts, ids: Int[Tensor, "B L"], capability: Capability, num_last: int
) -> Float[Tensor, "B num_last V"]:
    """Logits of the last tokens, scored in one pass or one by one from a state that holds the others."""
    is_own = RARE["own states"](facts) is not None
    scorer = RARE["state scorer"](facts) if is_own else RecurrentScorer(facts, capability=capability)
    prompt, chain = ids[:, :-num_last], ids[:, -num_last:]
    scorer.prefill(prompt, torch.ones_like(prompt, dtype=torch.bool))
    parents = torch.arange(-1, num_last - 1, device="cpu").expand(len(ids), -1)
    width = 1 if capability == Capability.PLAIN else num_last
    parts = zip(chain.split(width, dim=1), parents.split(width, dim=1), strict=True)
    return torch.cat([scorer.extend(tokens, above).logits for tokens, above in parts], dim=1).float()
