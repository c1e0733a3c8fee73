"""The scorer that fits a model, by what the model is found to score rightly."""

from collections.abc import Callable, Sequence
from functools import partial

from transformers import Cache, PreTrainedModel

from treespec.checks import is_at_least
from treespec.errors import UnsupportedModelError
from treespec.hf.add_ons import RARE
from treespec.hf.attention.rope_lengths import RopeByLength, rereading_length
from treespec.hf.cache.caches import is_filled
from treespec.hf.introspect import ModelFacts, is_multimodal, model_facts, uncompiled
from treespec.hf.models.capability import Detection, detect, keeps_states, num_indexed, warn_once
from treespec.hf.models.plain_scorer import PlainScorer
from treespec.hf.models.prompt import PromptInputs
from treespec.hf.models.recurrent_scorer import RecurrentScorer
from treespec.hf.models.rereading_scorer import RereadingScorer
from treespec.hf.models.selfcheck import Attempt, check_once
from treespec.hf.models.tree_scorer import TreeScorer
from treespec.protocols import Capability

READS_ALL_AGAIN = is_at_least("transformers", "5.24")
"""Earlier versions go on without the cache there, from the last token alone: by passes that only plain ones repeat."""
AnyScorer = TreeScorer | RecurrentScorer | PlainScorer


def make_scorer(
    model: PreTrainedModel | ModelFacts,
    *,
    cache: Cache | None = None,
    max_cache_len: int | None = None,
    prompt: PromptInputs | None = None,
    hidden_layers: Sequence[int] = (),
    longest_text: int | None = None,
    why_plain: str | None = None,
) -> AnyScorer:
    """The scorer that fits a model; for the arguments see `TreeScorer`.

    `longest_text`, of a target's call: the tokens of a row's prompt, output and last draft at most; None: no limit.
    `why_plain`: why a target's passes must be those of plain `generate`; None: they need not, as far as is known.

    At a model's first use a few passes over a few tokens compare tree logits with path logits (see `selfcheck`); where
    they differ the scorer's capability is less, and a `TreespecWarning` says so once.

    Raises:
        ConfigError: not a model.
        UnsupportedModelError: not a causal model with a transformers cache, a given cache that cannot be continued, or
            a model that cannot verify trees from a static cache.
    """
    facts = model_facts(model)
    is_fresh = max_cache_len is None and (cache is None or not is_filled(cache))
    if prompt is not None and (why_plain := why_plain or _why_plain(facts, prompt, longest_text)):
        warn_once(facts, Detection(Capability.PLAIN, why_plain))
        if not is_fresh:
            reason = f"takes no static and no filled cache where it decodes one token at a time because {why_plain}"
            raise UnsupportedModelError(f"{facts.name} {reason}")
        return PlainScorer(facts, prompt, hidden_layers)
    detection = detect(facts)
    if keeps_states(facts.model):
        if not is_fresh:
            raise UnsupportedModelError(f"{facts.name} keeps a state: it takes no static and no filled cache")
        given = prompt if prompt is not None and prompt.has_features else None
        return _for_states(facts, detection, hidden_layers, given)
    rope = RopeByLength(facts.model, facts.modules)
    found = _checked(facts, detection, max_cache_len, rope)
    if prompt is not None and found == Capability.PLAIN:
        return PlainScorer(facts, prompt, hidden_layers, cache)
    make = _kind(rereading_length(facts.model, rope), prompt, longest_text)
    given = prompt if is_multimodal(facts.model) else None
    return make(
        facts, capability=found, cache=cache, max_cache_len=max_cache_len, prompt=given, hidden_layers=hidden_layers
    )


def _kind(length: int | None, prompt: PromptInputs | None, longest: int | None) -> Callable[..., TreeScorer]:
    is_reread = prompt is not None and length is not None and _crosses(length, prompt, longest)
    return partial(RereadingScorer, length=length) if is_reread and length is not None else TreeScorer


def _for_states(
    facts: ModelFacts, detection: Detection, hidden_layers: Sequence[int], prompt: PromptInputs | None
) -> AnyScorer:
    """A scorer of trees where the self-check finds it right, else one that goes back to snapshots of the states."""
    make = partial(RARE["state scorer"], facts)
    found = check_once(facts, [(Capability.TREE, make)])
    if found.capability == Capability.TREE:
        return make(hidden_layers=hidden_layers, prompt=prompt)
    if RARE["own states"](facts) is not None:
        raise UnsupportedModelError(f"{facts.name} keeps its state outside of transformers' caches; {found.reason}")
    warn_once(facts, detection._replace(reason=f"{detection.reason}; {found.reason}"))
    return RecurrentScorer(facts, capability=detection.capability, hidden_layers=hidden_layers, prompt=prompt)


def _checked(facts: ModelFacts, detection: Detection, max_cache_len: int | None, rope: RopeByLength) -> Capability:
    """The capability of an attention model by its self-check.

    Raises `UnsupportedModelError`: a static cache without tree verification, or rope by length in compiled passes.
    """
    is_static = max_cache_len is not None
    if facts.forward is not facts.model and rope.is_exceeded_by(max_cache_len):
        reason = f"rope frequencies depend on the length of texts beyond {rope.threshold} tokens"
        raise UnsupportedModelError(f"{facts.name}: {reason}, which compiled passes do not follow")
    plain = uncompiled(facts)  # The check's passes are too few to be worth compiling.
    attempts: list[Attempt] = [
        (capability, partial(TreeScorer, plain, capability=capability))
        for capability in (Capability.TREE, Capability.CHAIN, Capability.PLAIN)
    ]
    found = detection if detection.capability == Capability.PLAIN else check_once(facts, attempts, is_static)
    if not is_static:
        warn_once(facts, found)
    elif found.capability != Capability.TREE:
        reason = f"{facts.name} is not known to score rightly from a static cache ({found.reason})"
        raise UnsupportedModelError(f"{reason}: leave out cache_implementation='static'")
    return found.capability


def _why_plain(facts: ModelFacts, prompt: PromptInputs, longest_text: int | None) -> str | None:
    """Why a target decodes a long text by the passes of plain `generate`, which no others can replace."""
    indexed, rope = num_indexed(facts), RopeByLength(facts.model, facts.modules)
    reread = rereading_length(facts.model, rope)
    if indexed is not None and (longest_text is None or longest_text > indexed):
        return (
            f"its layers attend to the tokens with the highest index scores, {indexed} at most, and rounding decides "
            f"which these are: texts of up to {indexed} tokens, drafts included, decode by chains (docs/models.md)"
        )
    is_reread = reread is not None and _crosses(reread, prompt, longest_text)
    if is_reread and (len(prompt.ids) > 1 or prompt.has_features or not READS_ALL_AGAIN):
        return (
            f"its generate reads a text again by other rope frequencies once it is longer than {reread} tokens: single "
            "texts without images or sounds, and batches that end before, drafts included, or begin after it decode by "
            "trees (docs/models.md)"
        )
    if rope.is_exceeded_by(longest_text) and keeps_states(facts.model):
        return (
            f"it keeps a state, and its rope frequencies depend on the length of texts beyond {rope.threshold} tokens: "
            "shorter texts, drafts included, decode by chains (docs/models.md)"
        )
    return None


def _crosses(length: int, prompt: PromptInputs, longest_text: int | None) -> bool:
    """Whether texts of at most `length` tokens may become longer; None: there is no limit."""
    return prompt.ids.shape[1] <= length and (longest_text is None or longest_text > length)
