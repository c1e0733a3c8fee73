"""The scorer of a call's target: which one fits the model, its cache and the options."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from treespec.engine.checks import hidden_layers
from treespec.errors import TreespecError, UnsupportedModeError
from treespec.hf.attention.rope_lengths import RopeByLength
from treespec.hf.cache.caches import twin_cache
from treespec.hf.cache.growing import use_dynamic_layers
from treespec.hf.evaluation import evaluation_mode
from treespec.hf.generation.call import Call
from treespec.hf.models.generate_check import check_like_generate, why_plain_by_hooks
from treespec.hf.models.make_scorer import AnyScorer, make_scorer
from treespec.hf.models.recurrent_scorer import RecurrentScorer
from treespec.protocols import Capability, CausalScorer


def make_target(call: Call) -> CausalScorer:
    """The scorer that returns the hidden states which the drafter reads and the call returns.

    Raises `TreespecError`: see `make_scorer`, `check_like_generate`.
    """
    why_plain = why_plain_by_hooks(call.facts)
    layers = tuple({*hidden_layers(call.drafter), *call.state_layers})
    compiled = None if why_plain else _compiled(call, layers)
    target = _plain(call, layers, why_plain) if compiled is None else compiled
    is_padded = not bool(call.mask.all())
    check_like_generate(call.facts, target.capability, is_padded, has_plain_passes=why_plain is not None)
    return target


@contextmanager
def in_use(call: Call, target: CausalScorer) -> Iterator[None]:
    """Inside the target makes its passes, in evaluation mode; after an error the caller's cache keeps no tree nodes."""
    try:
        with evaluation_mode(call.facts.model):
            yield
    except BaseException:
        if call.num_rows == 1:
            with suppress(TreespecError):
                target.commit([()])
            if call.cache is not None:
                use_dynamic_layers(call.cache)
        raise


def _compiled(call: Call, layers: tuple[int, ...]) -> CausalScorer | None:
    """The scorer of compiled passes, if the options ask for one.

    Raises `UnsupportedModeError`: the call needs a growing cache, and `compile` is not "auto", which goes without.
    """
    if call.compiled is None:
        return None
    reason = None
    if call.has_filled_cache:
        reason = "compile= keeps a static cache of its own: leave out the filled cache"
    elif call.prompt.has_features:
        reason = "compile= decodes text: for prompts with images or sounds leave it out"
    elif call.config.max_length is None:
        reason = "compile= needs a static cache, whose size is the longest text: give max_new_tokens"
    if reason is None:
        return call.compiled.scorer(call.model, int(call.config.max_length or 0), call.policy, layers)
    if not call.compiled.is_measured:
        raise UnsupportedModeError(reason)
    return None


def _plain(call: Call, layers: tuple[int, ...], why_plain: str | None) -> AnyScorer:
    longest, most = call.config.max_length, call.policy.max_nodes
    is_static = call.config.cache_implementation == "static"
    cache = call.cache
    if cache is not None and call.has_filled_cache and call.num_rows > 1:
        # Rows end at different lengths and cannot be continued: the caller's cache is left unchanged.
        cache = twin_cache(cache)
    scorer = make_scorer(
        call.facts,
        cache=cache,
        # The whole text, one tree, and the holes of rows that accept different lengths.
        max_cache_len=int(longest or 0) + 2 * most if is_static else None,
        prompt=call.prompt,
        hidden_layers=layers,
        longest_text=None if longest is None else longest + most,
        why_plain=why_plain,
    )
    is_by_length = RopeByLength(call.facts.model, call.facts.modules).is_exceeded_by(longest)
    if is_by_length or (scorer.capability == Capability.PLAIN and not isinstance(scorer, RecurrentScorer)):
        _check_passes(call, scorer.facts.name)
    return scorer


def _check_passes(call: Call, name: str) -> None:
    """For a model whose logits depend on which tokens share a pass: plain `generate` makes the passes made here.

    Raises `UnsupportedModeError`: it would make others.
    """
    others = {
        "use_cache=False": call.config.use_cache is False,
        "prefill_chunk_size": getattr(call.config, "prefill_chunk_size", None) is not None,
    }
    if given := [option for option, is_given in others.items() if is_given]:
        raise UnsupportedModeError(
            f"{name} has other logits where other tokens share a pass, and {' and '.join(given)} would change the "
            "passes: leave it out, or use the model's own generate"
        )
