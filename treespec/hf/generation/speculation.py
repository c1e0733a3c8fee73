"""The public face: `TreeSpeculation`, a `custom_generate` object for transformers' own `generate`, and `generate`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from typing import Any

from torch import Tensor
from transformers import GenerationConfig, LogitsProcessorList, PreTrainedModel, StoppingCriteriaList
from transformers.generation.streamers import BaseStreamer

from treespec.engine.stats import SpeculationStats, StepRecord
from treespec.errors import ConfigError, UnsupportedModeError
from treespec.hf.generation.call import Call, Output
from treespec.hf.generation.validate import check_ids, check_mode, check_positions, prompt_mask
from treespec.hf.introspect import check_model
from treespec.hf.loading.drafters import AnyDrafter, as_drafter
from treespec.policies import as_policy
from treespec.protocols import TreePolicy, VerificationRule
from treespec.verification import get_rule


class TreeSpeculation:
    """Speculative decoding by token trees, as `model.generate(..., custom_generate=TreeSpeculation(drafter))`.

    The output distribution is the model's own: identical tokens when greedy (near-ties in floating point aside), the
    same distribution when sampling. The object holds the options and is reusable, one call at a time.

    Args:
        drafter: a `Drafter`, a causal language model with the target's vocabulary, or a list of them to be merged.
        tree: a `TreePolicy`, a list of rank paths (or its literal), or a node budget, root included.
        verification: "auto" (target walk for selected children, otherwise traversal), a rule's name, or a rule.
        tokenizer: needed for `stop_strings` only.
        streamer: gets the prompt, every accepted chunk int64 [1, k] and `end()`; batch size one.
        stop_strings: strings that end a row (transformers' own `stop_strings=` cannot reach a custom_generate object).
        seed: of the draft, coin and target streams; None takes one draw from torch's default generator per call.
        record_steps: keep one `StepRecord` per step of the last call in `steps`.

    Raises:
        ConfigError: an option of the wrong kind or out of range, an unknown rule.
    """

    def __init__(
        self,
        drafter: AnyDrafter | Sequence[AnyDrafter],
        *,
        tree: TreePolicy | str | Sequence[Sequence[int]] | int = 16,
        verification: str | VerificationRule = "auto",
        tokenizer: Any = None,
        streamer: BaseStreamer | None = None,
        stop_strings: str | Sequence[str] | None = None,
        seed: int | None = None,
        record_steps: bool = False,
    ) -> None:
        _check_stop_strings(stop_strings, tokenizer)
        _check_streamer(streamer)
        _check_seed(seed)
        self.drafter = as_drafter(drafter)
        self.policy = as_policy(tree)
        self.verification = verification if verification == "auto" else get_rule(verification)
        self.tokenizer, self.streamer = tokenizer, streamer
        self.stop_strings = stop_strings
        self.seed, self.record_steps = seed, record_steps
        self.stats, self.total_stats = SpeculationStats(), SpeculationStats()
        self.steps: list[StepRecord] = []
        self._is_running, self._num_calls = False, 0

    def __call__(
        self,
        model: PreTrainedModel,
        input_ids: Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        **model_kwargs: Any,
    ) -> Output:
        """What `generate` calls when everything is prepared: input_ids int64 [B, P] to sequences int64 [B, P + new].

        Raises:
            TreespecError: see `check_mode`, `speculate` and `make_scorer`.
        """
        if self._is_running:
            raise ConfigError("this TreeSpeculation is decoding already: use one object, and one drafter, per thread")
        self._is_running, self._num_calls = True, self._num_calls + 1
        try:
            check_mode(model, input_ids, generation_config, model_kwargs)
            input_ids = input_ids.long()
            mask = prompt_mask(input_ids, model_kwargs.get("attention_mask"))
            check_positions(model_kwargs.get("position_ids"), mask)
            if self.streamer is not None:
                self._stream_prompt(input_ids)
            cache = model_kwargs.get("past_key_values")
            call = Call(self, model, input_ids, mask, logits_processor, stopping_criteria, generation_config, cache)
            result = call.decode()
            self.stats, self.steps = result.stats, result.records
            self.total_stats.add(result.stats)
            return call.output(result)
        finally:
            self._is_running = False
            if self.streamer is not None:
                self.streamer.end()

    def _stream_prompt(self, input_ids: Tensor) -> None:
        if input_ids.shape[0] > 1:
            raise UnsupportedModeError(f"a streamer follows one row, the batch has {input_ids.shape[0]}")
        assert self.streamer is not None
        self.streamer.put(input_ids.cpu())

    @contextmanager
    def overridden(self, **options: Any) -> Iterator[TreeSpeculation]:
        """The object with other options for the time of a `with` block; None leaves an option as it is.

        Raises:
            ConfigError: a seed that is none. Of the other options their callers must take care.
        """
        _check_seed(options.get("seed"))
        kept = {name: getattr(self, name) for name, value in options.items() if value is not None}
        try:
            for name in kept:
                setattr(self, name, options[name])
            yield self
        finally:
            for name, value in kept.items():
                setattr(self, name, value)


def generate(
    model: PreTrainedModel,
    inputs: Tensor | Mapping[str, Any],
    speculation: TreeSpeculation,
    *,
    streamer: BaseStreamer | None = None,
    tokenizer: Any = None,
    stop_strings: str | Sequence[str] | None = None,
    **generation_kwargs: Any,
) -> Output:
    """`model.generate` by speculation, with transformers' own preparation and all its keyword arguments.

    Args:
        model: any causal language model.
        inputs: input ids int64 [B, P], or what a tokenizer returns.
        speculation: the options.
        streamer, tokenizer, stop_strings: override the object's own for this call.
        generation_kwargs: passed to `model.generate` (`max_new_tokens`, `do_sample`, `stopping_criteria`, ...).

    Returns:
        As `model.generate`.

    Raises:
        ConfigError: something that is no model, an empty prompt or no ids; see also `TreeSpeculation`.
    """
    check_model(model)
    if not isinstance(speculation, TreeSpeculation):
        raise ConfigError(f"speculation must be a TreeSpeculation, got {type(speculation).__name__}")
    _check_streamer(streamer)
    arguments = dict(inputs) if isinstance(inputs, Mapping) else {"inputs": inputs}
    # transformers cannot hand the tokenizer of its own stop_strings to a custom_generate object: they go to ours.
    config = generation_kwargs.get("generation_config") or model.generation_config
    if config.stop_strings is not None:
        stop_strings = stop_strings or config.stop_strings
        generation_kwargs["generation_config"] = config = copy(config)
        config.stop_strings = None
    num_calls = speculation._num_calls
    with speculation.overridden(streamer=streamer, tokenizer=tokenizer, stop_strings=stop_strings):
        try:
            _check_stop_strings(speculation.stop_strings, speculation.tokenizer)
            check_ids(model, arguments.get("input_ids", arguments.get("inputs")))
            return model.generate(  # pyright: ignore[reportCallIssue]
                **arguments, custom_generate=speculation, **generation_kwargs
            )
        finally:
            # An error before the object was called must not leave the streamer's reader waiting.
            if speculation.streamer is not None and speculation._num_calls == num_calls:
                speculation.streamer.end()


def _check_seed(seed: Any) -> None:
    is_seed = isinstance(seed, int) and not isinstance(seed, bool) and 0 <= seed < 2**63
    if seed is not None and not is_seed:
        raise ConfigError(f"seed must be None or an int from 0 to 2**63 - 1, got {seed!r}")


def _check_streamer(streamer: Any) -> None:
    if streamer is not None and not all(callable(getattr(streamer, name, None)) for name in ("put", "end")):
        raise ConfigError(f"a streamer needs put() and end(), got {type(streamer).__name__}")


def _check_stop_strings(stop_strings: Any, tokenizer: Any) -> None:
    if stop_strings is None:
        return
    strings = [stop_strings] if isinstance(stop_strings, str) else stop_strings
    if not isinstance(strings, Sequence) or not strings or not all(isinstance(s, str) and s for s in strings):
        raise ConfigError(f"stop_strings must be a string or several, none of them empty, got {stop_strings!r}")
    if tokenizer is None:
        raise ConfigError("stop_strings need the tokenizer: give tokenizer=tokenizer beside them")
