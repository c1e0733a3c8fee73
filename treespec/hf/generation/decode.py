"""One call of `generate`, from what transformers has prepared to the returned sequences."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import (
    Cache,
    DynamicCache,
    GenerationConfig,
    LogitsProcessorList,
    PreTrainedModel,
    StoppingCriteriaList,
)
from transformers.generation.stopping_criteria import StopStringCriteria
from transformers.generation.streamers import BaseStreamer
from transformers.generation.utils import GenerateDecoderOnlyOutput

from treespec.engine.loop import hidden_layers, speculate
from treespec.engine.request import Request, Result
from treespec.engine.trace import Recorder, TraceFile
from treespec.errors import ConfigError, TreespecError
from treespec.hf.cache.caches import is_filled, twin_cache
from treespec.hf.cache.growing import use_dynamic_layers
from treespec.hf.devices.ranks import Ranks
from treespec.hf.generation.grammar import after_prompt
from treespec.hf.generation.grammar_drafts import under_constraints
from treespec.hf.generation.output_scores import OutputScores
from treespec.hf.generation.output_states import OutputStates
from treespec.hf.generation.prefix_function import along_branches
from treespec.hf.generation.processors import TreeProcessors
from treespec.hf.generation.stopping import TreeStopping
from treespec.hf.generation.tracing import about_call
from treespec.hf.introspect import model_facts
from treespec.hf.models.make_scorer import AnyScorer, make_exit_scorer, make_scorer
from treespec.hf.models.pass_times import pass_times
from treespec.hf.models.prompt import PromptInputs
from treespec.policies.control.contract import StepControl
from treespec.protocols import Drafter, EarlyExitDrafter, PathProcessors, TreePolicy, VerificationRule
from treespec.sampling import NoProcessors

Output = Tensor | GenerateDecoderOnlyOutput


@dataclass(frozen=True)
class Options:
    """The options of `TreeSpeculation`, whose arguments have the same names; one call's are a copy with `replace`.

    Raises `ConfigError`: stop strings that are not strings or come without a tokenizer, a streamer without `put` and
    `end`, a seed that is not an int from 0 to 2**63 - 1.
    """

    drafter: Drafter
    policy: TreePolicy
    verification: str | VerificationRule = "auto"
    tokenizer: Any = None
    streamer: BaseStreamer | None = None
    stop_strings: str | Sequence[str] | None = None
    seed: int | None = None
    record_steps: bool = False
    trace: TraceFile | None = None

    def __post_init__(self) -> None:
        seed = self.seed
        streamer = self.streamer
        if seed is not None and (type(seed) is not int or not 0 <= seed < 2**63):
            raise ConfigError(f"seed must be None or an int from 0 to 2**63 - 1, got {seed!r}")
        if streamer is not None and not all(callable(getattr(streamer, name, None)) for name in ("put", "end")):
            raise ConfigError(f"a streamer needs put() and end(), got {type(streamer).__name__}")
        if self.stop_strings is None:
            return
        strings = [self.stop_strings] if isinstance(self.stop_strings, str) else self.stop_strings
        if not isinstance(strings, Sequence) or not strings or not all(isinstance(s, str) and s for s in strings):
            raise ConfigError(f"stop_strings must be one or several non-empty strings, got {self.stop_strings!r}")
        if self.tokenizer is None:
            raise ConfigError("stop_strings need the tokenizer: give tokenizer=tokenizer too")


@dataclass(frozen=True)
class Prepared:
    """What transformers hands to a `custom_generate` object: int64 [B, P], bool [B, P], and what it prepared."""

    model: PreTrainedModel
    input_ids: Tensor
    mask: Tensor
    processors: LogitsProcessorList
    criteria: StoppingCriteriaList
    config: GenerationConfig
    cache: Cache | None
    prompt: PromptInputs

    @property
    def num_rows(self) -> int:
        return self.input_ids.shape[0]

    @property
    def state_layers(self) -> range:
        """The layers whose hidden states are returned, the embeddings among them."""
        is_wanted = self.config.output_hidden_states and self.config.return_dict_in_generate
        return range(self.model.config.get_text_config().num_hidden_layers + 1 if is_wanted else 0)


def decode(call: Prepared, options: Options) -> tuple[Output, Result]:
    """Decode until every row has stopped; what `generate` returns, and the engine's result.

    Raises `TreespecError`: see `make_scorer`, `make_exit_scorer`, `TreeProcessors` and `speculate`; a
    `RanksDisagreeError` where processes that run the model together make other calls.
    """
    ranks = model_facts(call.model).ranks
    if ranks is None:
        return _decode(call, options)
    with ranks.together("call", _what_ranks_share(call, options)):
        return _decode(call, options, ranks)


def _what_ranks_share(call: Prepared, options: Options) -> list[Any]:
    """What decides which passes a call makes, and when it ends."""
    config = call.config
    parts = [options.drafter, options.policy, *call.criteria]
    return [
        call.input_ids.tolist(),
        call.mask.tolist(),
        (config.do_sample, config.max_length, config.eos_token_id, config.cache_implementation),
        [type(part).__name__ for part in parts],
        options.trace is not None,
    ]


def _decode(call: Prepared, options: Options, ranks: Ranks | None = None) -> tuple[Output, Result]:
    scores = OutputScores(call.config, *call.input_ids.shape)
    target: Any = _make_target(call, options)
    if call.state_layers:
        has_filled_cache = call.cache is not None and is_filled(call.cache)
        target = OutputStates(target, len(call.state_layers), has_filled_cache)
    criteria = call.criteria
    if options.stop_strings is not None:
        strings = [options.stop_strings] if isinstance(options.stop_strings, str) else list(options.stop_strings)
        criteria = StoppingCriteriaList([*criteria, StopStringCriteria(options.tokenizer, strings)])
    stopping = TreeStopping(criteria, call.num_rows, target.max_positions, scores.scores_of, ranks)
    streamer = options.streamer
    constrained = along_branches(call.processors, call.input_ids)
    processors = _path_processors(call, constrained)
    trace = _recorder(call, options, processors, ranks)
    request = Request(
        # Images may have ids outside the vocabulary, which drafters and processors do not know.
        prompt_ids=call.input_ids.masked_fill(call.input_ids >= target.vocab_size, 0),
        prompt_mask=call.mask,
        stopping=stopping,
        policy=options.policy,
        verification=options.verification,
        processors=processors if trace is None else trace.processors,
        is_sampling=bool(call.config.do_sample),
        seed=options.seed,
        on_tokens=None if streamer is None else lambda row, tokens: streamer.put(torch.tensor([tokens])),
        on_target_probs=scores if scores.kept else None,
        pass_ms=_pass_ms(call, options.policy),
        has_records=options.record_steps,
        trace=trace,
        ranks=ranks,
    )
    try:
        with after_prompt(constrained, call.input_ids.shape[1]), trace or nullcontext():
            drafter = under_constraints(options.drafter, constrained, options.tokenizer, _ends(call))
            result = speculate(target, drafter, request)
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
    cache = _final_cache(call, target)
    states = target.stacked(list(map(len, emitted))) if isinstance(target, OutputStates) else None
    return _output(call, emitted, scores, cache, states), result


def _pass_ms(call: Prepared, policy: TreePolicy) -> Mapping[int, float] | None:
    """What a control predicts from: the times that it was given, else those of the model on this machine."""
    return pass_times(call.model) if isinstance(policy, StepControl) and policy.needs_pass_times else None


def _recorder(call: Prepared, options: Options, processors: PathProcessors, ranks: Ranks | None) -> Recorder | None:
    """Of several processes the first one records; all measure passes for it."""
    if options.trace is None:
        return None
    prompts = [ids[mask].tolist() for ids, mask in zip(call.input_ids, call.mask, strict=True)]
    names = [type(processor).__name__ for processor in call.processors]
    about = about_call(call.model, call.config, options, prompts, names)
    if ranks is not None and ranks.index > 0:
        return None
    return Recorder(options.trace, about, options.drafter, processors, options.tokenizer)


def _ends(call: Prepared) -> list[int]:
    """The tokens that end a text."""
    ends = getattr(call.config, "_eos_token_tensor", None)
    return [] if ends is None else ends.flatten().tolist()


def _path_processors(call: Prepared, processors: Sequence[Any]) -> PathProcessors:
    if not processors:
        return NoProcessors()
    return TreeProcessors(processors, call.num_rows, (~call.mask).sum(1).tolist())


def _make_target(call: Prepared, options: Options) -> AnyScorer:
    """The scorer that returns the hidden states which the drafter reads, with an early exit if it drafts by one."""
    drafter = options.drafter
    cache = call.cache
    if call.num_rows > 1 and cache is not None and is_filled(cache):
        # Rows end at different lengths and cannot be continued: the caller's cache stays as it is.
        cache = twin_cache(cache)
    num_slots = None
    if call.config.cache_implementation == "static":
        # The whole text, one tree, and the holes of rows that accept different lengths.
        num_slots = int(call.config.max_length or 0) + 2 * options.policy.max_nodes
    kwargs: dict[str, Any] = {"cache": cache, "max_cache_len": num_slots, "prompt": call.prompt}
    kwargs["hidden_layers"] = tuple({*hidden_layers(drafter), *call.state_layers})
    if isinstance(drafter, EarlyExitDrafter) and drafter.exit_layer is not None:
        return make_exit_scorer(call.model, drafter.exit_layer, **kwargs)
    return make_scorer(call.model, **kwargs)


def _final_cache(call: Prepared, target: AnyScorer) -> Cache | None:
    """The cache of a single row, as plain decoding would leave it; None for a batch, whose rows end raggedly.

    An empty `DynamicCache` that the caller gave receives the text's keys and values.
    """
    if call.num_rows > 1:
        return None
    if target.cache is not None:
        use_dynamic_layers(target.cache)
    if isinstance(call.cache, DynamicCache) and isinstance(target.cache, DynamicCache):
        call.cache.layers[:] = target.cache.layers
        return call.cache
    return target.cache


def _output(
    call: Prepared,
    emitted: Sequence[Sequence[int]],
    scores: OutputScores,
    cache: Cache | None,
    states: tuple[tuple[Tensor, ...], ...] | None,
) -> Output:
    """What `generate` returns for the tokens that every row emitted."""
    rows = [torch.tensor(tokens, dtype=torch.int64) for tokens in emitted]
    pad = getattr(call.config, "_pad_token_tensor", None)
    padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=0 if pad is None else int(pad))
    sequences = torch.cat([call.input_ids, padded.to(call.input_ids)], dim=1)
    if not call.config.return_dict_in_generate:
        return sequences
    lengths = list(map(len, emitted))
    return GenerateDecoderOnlyOutput(
        sequences=sequences,  # pyright: ignore[reportArgumentType]
        scores=scores.stacked("scores", lengths),  # pyright: ignore[reportArgumentType]
        logits=scores.stacked("logits", lengths),  # pyright: ignore[reportArgumentType]
        hidden_states=states,  # pyright: ignore[reportArgumentType]
        past_key_values=cache,
    )
