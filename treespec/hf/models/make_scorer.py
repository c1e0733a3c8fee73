"""The scorer that fits a model, by what the model is found to score rightly."""

from collections.abc import Sequence
from functools import partial

from transformers import Cache, PreTrainedModel

from treespec.errors import UnsupportedModelError
from treespec.hf.cache.caches import is_filled
from treespec.hf.introspect import ModelFacts, is_multimodal, model_facts, uncompiled
from treespec.hf.models.capability import Detection, detect, keeps_states, num_indexed, warn_once
from treespec.hf.models.plain_scorer import PlainScorer
from treespec.hf.models.prompt import PromptInputs
from treespec.hf.models.recurrent_prompt import RecurrentPromptScorer
from treespec.hf.models.recurrent_scorer import RecurrentScorer
from treespec.hf.models.selfcheck import Attempt, check_once
from treespec.hf.models.tree_scorer import TreeScorer
from treespec.protocols import Capability

AnyScorer = TreeScorer | RecurrentScorer | PlainScorer


def make_scorer(
    model: PreTrainedModel | ModelFacts,
    *,
    cache: Cache | None = None,
    max_cache_len: int | None = None,
    prompt: PromptInputs | None = None,
    hidden_layers: Sequence[int] = (),
    longest_text: int | None = None,
) -> AnyScorer:
    """The scorer that fits a model; for the arguments see `TreeScorer`.

    `longest_text`, of a target's call: the tokens of a row's prompt, output and last draft at most; None: no limit.

    At a model's first use a few passes over a few tokens compare tree logits with path logits (see `selfcheck`); where
    they differ the scorer's capability is less, and a `TreespecWarning` says so once.

    Raises:
        ConfigError: not a model.
        UnsupportedModelError: not a causal model with a transformers cache, a given cache that cannot be continued, or
            a model that cannot verify trees from a static cache.
    """
    facts = model_facts(model)
    detection = detect(facts)
    is_static = max_cache_len is not None
    if keeps_states(facts.model):
        indexed = _plain_by_index(facts, longest_text) if prompt is not None else None
        warn_once(facts, indexed or detection)
        if is_static or (cache is not None and is_filled(cache)):
            raise UnsupportedModelError(f"{facts.name} keeps a state: it takes no static and no filled cache")
        if prompt is not None and indexed is not None:
            return PlainScorer(facts, prompt, hidden_layers)
        if prompt is not None and prompt.has_features:
            return RecurrentPromptScorer(facts, prompt, detection.capability, hidden_layers)
        return RecurrentScorer(facts, capability=detection.capability, hidden_layers=hidden_layers)
    found = detection if detection.capability == Capability.PLAIN else _checked(facts, is_static)
    if not is_static:
        warn_once(facts, found)
    elif found.capability != Capability.TREE:
        reason = f"{facts.name} is not known to score rightly from a static cache ({found.reason})"
        raise UnsupportedModelError(f"{reason}: leave out cache_implementation='static'")
    # Where nothing is drafted, reading a prompt as plain `generate` does makes all its passes the same.
    has_own_prompt = is_multimodal(facts.model) or found.capability == Capability.PLAIN
    return TreeScorer(
        facts,
        capability=found.capability,
        cache=cache,
        max_cache_len=max_cache_len,
        prompt=prompt if has_own_prompt else None,
        hidden_layers=hidden_layers,
    )


def _plain_by_index(facts: ModelFacts, longest_text: int | None) -> Detection | None:
    """That and why a target decodes plainly whose layers choose among the text's tokens by index scores, if they do."""
    size = num_indexed(facts.model)
    if size is None or (longest_text is not None and longest_text <= size):
        return None
    reason = (
        f"its layers attend to the tokens with the highest index scores, {size} at most, and rounding decides which "
        f"these are: texts of up to {size} tokens, drafts included, decode by chains (docs/models.md)"
    )
    return Detection(Capability.PLAIN, reason)


def _checked(facts: ModelFacts, is_static: bool) -> Detection:
    plain = uncompiled(facts)  # The check's passes are too few to be worth compiling.
    attempts: list[Attempt] = [
        (capability, partial(TreeScorer, plain, capability=capability))
        for capability in (Capability.TREE, Capability.CHAIN, Capability.PLAIN)
    ]
    return check_once(facts, attempts, is_static)
