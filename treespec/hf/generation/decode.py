"""One call of `generate`, from what transformers has prepared to the returned sequences."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from transformers import StoppingCriteriaList
from transformers.generation.stopping_criteria import StopStringCriteria

from treespec.engine.checks import hidden_layers
from treespec.engine.loop import speculate
from treespec.engine.observer import Observer
from treespec.engine.request import Request, Result
from treespec.errors import TreespecError, UnsupportedModeError
from treespec.hf.attention.rope_lengths import RopeByLength
from treespec.hf.cache.caches import is_filled, twin_cache
from treespec.hf.cache.growing import use_dynamic_layers
from treespec.hf.generation.add_ons import ADD_ONS
from treespec.hf.generation.call import Options, Prepared, what_ranks_share
from treespec.hf.generation.grammar import after_prompt
from treespec.hf.generation.output import Output, final_cache, output
from treespec.hf.generation.output_scores import OutputScores
from treespec.hf.generation.output_states import OutputStates
from treespec.hf.generation.prefix_function import along_branches
from treespec.hf.generation.processors import TreeProcessors, check_follows_text
from treespec.hf.generation.progress import Progress, Streaming
from treespec.hf.generation.stopping import TreeStopping
from treespec.hf.introspect import ModelFacts, model_facts
from treespec.hf.models.generate_check import check_like_generate, why_plain_by_hooks
from treespec.hf.models.make_scorer import AnyScorer, make_scorer
from treespec.hf.models.pass_times import pass_times
from treespec.hf.models.recurrent_scorer import RecurrentScorer
from treespec.hf.models.static_scorer import StaticScorer
from treespec.policies.control.contract import StepControl
from treespec.protocols import Capability, Drafter, PathProcessors, TreePolicy
from treespec.sampling import NoProcessors


def decode(call: Prepared, options: Options, observers: Sequence[Observer] = ()) -> tuple[Output, Result]:
    """Decode until every row has stopped; what `generate` returns, and the engine's result. `observers` watch too.

    Raises `TreespecError`: see `make_scorer`, `check_like_generate`, `TreeProcessors` and
    `speculate`; a `RanksDisagreeError` where processes that run the model together make other calls.
    """
    facts = model_facts(call.model)
    with facts.ranks.together("call", lambda: what_ranks_share(call, options)):
        return _decode(call, options, facts, observers)


def _decode(
    call: Prepared, options: Options, facts: ModelFacts, observers: Sequence[Observer]
) -> tuple[Output, Result]:
    ranks = facts.ranks
    scores = OutputScores(call.config, *call.input_ids.shape)
    why_plain = why_plain_by_hooks(facts)
    target: Any = _make_target(call, options, facts, why_plain)
    is_compiled = isinstance(target, StaticScorer)
    is_padded = not bool(call.mask.all())
    check_like_generate(facts, target.capability, is_padded, has_plain_passes=why_plain is not None)
    if call.state_layers:
        has_filled_cache = call.cache is not None and is_filled(call.cache)
        target = OutputStates(target, len(call.state_layers), has_filled_cache)
    last = getattr(target, "last_length", None)
    criteria = _criteria(call, options)
    stopping = TreeStopping(criteria, call.num_rows, target.max_positions, scores.scores_of, ranks, last)
    constrained = along_branches(call.processors, call.input_ids)
    processors = _path_processors(call, constrained, target.vocab_size)
    for processor in call.processors:
        check_follows_text(processor, call.input_ids, target.vocab_size)
    request = Request(
        # Images may have ids outside the vocabulary, which drafters do not know.
        prompt_ids=call.input_ids.masked_fill(call.input_ids >= target.vocab_size, 0),
        prompt_mask=call.mask,
        stopping=stopping,
        policy=options.policy,
        verification=options.verification,
        processors=processors,
        is_sampling=bool(call.config.do_sample),
        seed=options.seed,
        pass_ms=_pass_ms(facts, options.policy),
        observers=[*_observers(call, options, scores), *observers],
        ranks=ranks,
    )
    try:
        with after_prompt(constrained, call.input_ids.shape[1]):
            result = speculate(target, _drafter(call, options, constrained), request)
    except BaseException:
        # A caller's own cache must not keep tree nodes.
        if call.num_rows == 1:
            with suppress(TreespecError):
                target.commit([()])
            if call.cache is not None:
                use_dynamic_layers(call.cache)
        raise
    end = stopping.joint_length
    limit = None if end is None else end - call.input_ids.shape[1]
    emitted = [tokens[:limit] for tokens in result.tokens]
    # Later calls use a compiled target's cache again.
    cache = None if is_compiled else final_cache(call, target)
    states = target.stacked(list(map(len, emitted))) if isinstance(target, OutputStates) else None
    return output(call, emitted, scores, cache, states), result


def _criteria(call: Prepared, options: Options) -> StoppingCriteriaList:
    """The call's own and the stop strings."""
    if options.stop_strings is None:
        return call.criteria
    strings = [options.stop_strings] if isinstance(options.stop_strings, str) else list(options.stop_strings)
    return StoppingCriteriaList([*call.criteria, StopStringCriteria(options.tokenizer, strings)])


def _pass_ms(facts: ModelFacts, policy: TreePolicy) -> Mapping[int, float] | None:
    """What a control predicts from: the times that it was given, else those of the model on this machine."""
    return pass_times(facts) if isinstance(policy, StepControl) and policy.needs_pass_times else None


def _drafter(call: Prepared, options: Options, processors: Sequence[Any]) -> Drafter:
    """The options' drafter, under the constraints among the processors, see `Constraint`."""
    if not any(hasattr(processor, "allowed") for processor in processors):
        return options.drafter
    return ADD_ONS["constraints"](options.drafter, processors, options.tokenizer, call.end_tokens)


def _observers(call: Prepared, options: Options, scores: OutputScores) -> list[Observer]:
    """What watches the call: the outputs that were asked for, a streamer, a bar, and the options' own."""
    watcher = None if options.trace is None else options.trace.observer(call, options)
    return [
        *([scores] if scores.kept else []),
        *([] if options.streamer is None else [Streaming(options.streamer)]),
        *([Progress(call.most_tokens)] if options.progress else []),
        *([] if watcher is None else [watcher]),
    ]


def _path_processors(call: Prepared, processors: Sequence[Any], vocab_size: int) -> PathProcessors:
    if not processors:
        return NoProcessors()
    prompt_ids = call.input_ids if bool((call.input_ids >= vocab_size).any()) else None
    return TreeProcessors(processors, call.num_rows, (~call.mask).sum(1).tolist(), prompt_ids)


def _compiled_target(call: Prepared, options: Options, layers: Sequence[int]) -> StaticScorer | None:
    """The scorer of compiled passes, if the options ask for one.

    Raises `UnsupportedModeError`: the call needs a growing cache, and `compile` is not "auto", which goes without.
    """
    compiled = options.compiled
    if compiled is None:
        return None
    reason = None
    if call.cache is not None and is_filled(call.cache):
        reason = "compile= keeps a static cache of its own: leave out the filled cache"
    elif call.prompt.has_features:
        reason = "compile= decodes text: for prompts with images or sounds leave it out"
    elif call.config.max_length is None:
        reason = "compile= needs a static cache, whose size is the longest text: give max_new_tokens"
    if reason is not None and not compiled.is_measured:
        raise UnsupportedModeError(reason)
    if reason is not None:
        return None
    return compiled.scorer(call.model, int(call.config.max_length or 0), options.policy, layers)


def _make_target(
    call: Prepared, options: Options, facts: ModelFacts, why_plain: str | None
) -> AnyScorer | StaticScorer:
    """The scorer that returns the hidden states which the drafter reads."""
    drafter = options.drafter
    cache = call.cache
    if call.num_rows > 1 and cache is not None and is_filled(cache):
        # Rows end at different lengths and cannot be continued: the caller's cache stays as it is.
        cache = twin_cache(cache)
    layers = tuple({*hidden_layers(drafter), *call.state_layers})
    compiled = None if why_plain else _compiled_target(call, options, layers)
    if compiled is not None:
        return compiled
    num_slots = None
    if call.config.cache_implementation == "static":
        # The whole text, one tree, and the holes of rows that accept different lengths.
        num_slots = int(call.config.max_length or 0) + 2 * options.policy.max_nodes
    kwargs: dict[str, Any] = {"cache": cache, "max_cache_len": num_slots, "prompt": call.prompt}
    kwargs |= {"hidden_layers": layers, "why_plain": why_plain}
    longest = call.config.max_length
    kwargs["longest_text"] = None if longest is None else longest + options.policy.max_nodes
    scorer = make_scorer(facts, **kwargs)
    is_by_length = RopeByLength(facts.model).is_exceeded_by(longest)
    if is_by_length or (scorer.capability == Capability.PLAIN and not isinstance(scorer, RecurrentScorer)):
        _check_passes(call, scorer.facts.name)
    return scorer


def _check_passes(call: Prepared, name: str) -> None:
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
