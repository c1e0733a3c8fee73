"""One call of `generate`: the options of `TreeSpeculation` and what transformers has prepared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Protocol
from weakref import ReferenceType, ref

from torch import Tensor
from transformers import Cache, GenerationConfig, LogitsProcessorList, PreTrainedModel, StoppingCriteriaList
from transformers.generation.streamers import BaseStreamer

from treespec.checks import check_flag
from treespec.engine.observer import Observer
from treespec.errors import ConfigError, UnsupportedModeError
from treespec.hf.cache.caches import is_filled
from treespec.hf.generation.validate import ModelArguments, Tokenizer, checked_mask
from treespec.hf.introspect import ModelFacts, cache_in, model_facts
from treespec.hf.models.prompt import PromptInputs, prompt_inputs
from treespec.protocols import Drafter, TreePolicy, VerificationRule

if TYPE_CHECKING:
    from treespec.hf.models.compiled_target import CompiledTarget


class Watcher(Protocol):
    """A source of one observer per call, such as a `TraceFile`."""

    def observer(self, call: Call) -> Observer | None:
        """The observer of this call; None: it is not observed."""
        ...


@dataclass(frozen=True)
class Options:
    """The options of `TreeSpeculation`: `tree` is `policy` here, `compile` `compiled`; one call's are in its `Call`.

    Raises `ConfigError`: flags that are neither True nor False, stop strings that are not strings or come without a
    tokenizer, a streamer without `put` and `end`, observers that are not in a list or not of `Observer`, a seed that is
    not an int from 0 to 2**63 - 1.
    """

    drafter: Drafter
    policy: TreePolicy
    verification: str | VerificationRule = "auto"
    tokenizer: Tokenizer | None = None
    streamer: BaseStreamer | None = None
    stop_strings: str | Sequence[str] | None = None
    seed: int | None = None
    record_steps: bool = False
    progress: bool = False
    trace: Watcher | None = None
    observers: Sequence[Observer] = ()
    compiled: CompiledTarget | None = None

    def __post_init__(self) -> None:
        seed = self.seed
        streamer = self.streamer
        check_flag("record_steps", self.record_steps)
        check_flag("progress", self.progress)
        if seed is not None and (type(seed) is not int or not 0 <= seed < 2**63):
            raise ConfigError(f"seed must be None or an int from 0 to 2**63 - 1, got {seed!r}")
        if streamer is not None and not all(callable(getattr(streamer, name, None)) for name in ("put", "end")):
            raise ConfigError(f"a streamer needs put() and end(), got {type(streamer).__name__}")
        if not isinstance(self.observers, Sequence) or not all(isinstance(one, Observer) for one in self.observers):
            raise ConfigError(f"observers must be a list of Observer objects, got {self.observers!r}")
        if self.stop_strings is None:
            return
        strings = [self.stop_strings] if isinstance(self.stop_strings, str) else self.stop_strings
        if not isinstance(strings, Sequence) or not strings or not all(isinstance(s, str) and s for s in strings):
            raise ConfigError(f"stop_strings must be one or several non-empty strings, got {self.stop_strings!r}")
        if self.tokenizer is None:
            raise ConfigError("stop_strings need the tokenizer: give tokenizer=tokenizer too")


@dataclass(frozen=True, kw_only=True)
class Call(Options):
    """One call: its options, and what transformers hands to a `custom_generate` object. It does not keep the model.

    Attributes:
        input_ids, mask: int64 and bool [B, P]; False on left padding.
        prompt: what the target reads them with.
    """

    model_ref: ReferenceType[PreTrainedModel]
    input_ids: Tensor
    mask: Tensor
    processors: LogitsProcessorList
    criteria: StoppingCriteriaList
    config: GenerationConfig
    cache: Cache | None
    prompt: PromptInputs
    processor_names: tuple[str, ...]

    @classmethod
    def of(
        cls,
        options: Options,
        model: PreTrainedModel,
        input_ids: Tensor,
        processors: LogitsProcessorList,
        criteria: StoppingCriteriaList,
        config: GenerationConfig,
        arguments: ModelArguments,
    ) -> Call:
        """Raises `TreespecError`: see `checked_mask`; a streamer for several rows."""
        mask = checked_mask(model, input_ids, config, arguments)
        if options.streamer is not None and len(input_ids) > 1:
            raise UnsupportedModeError(f"a streamer takes one row, the batch has {len(input_ids)}")
        input_ids = input_ids.long()
        return cls(
            **vars(options),
            model_ref=ref(model),
            input_ids=input_ids,
            mask=mask,
            processors=processors,
            criteria=criteria,
            config=config,
            cache=cache_in(arguments),
            prompt=prompt_inputs(input_ids, arguments),
            processor_names=tuple(type(processor).__name__ for processor in processors),
        )

    def over(self) -> Call:
        """A copy of the call to keep afterwards, without its cache, features, processors and criteria."""
        text = PromptInputs(self.input_ids, {})
        processors, criteria = LogitsProcessorList(), StoppingCriteriaList()
        return replace(self, cache=None, prompt=text, processors=processors, criteria=criteria)

    @property
    def model(self) -> PreTrainedModel:
        """The model, which lives as long as the call runs."""
        found = self.model_ref()
        assert found is not None, "the model of a call that is over may be gone: ask `model_ref`"
        return found

    @cached_property
    def facts(self) -> ModelFacts:
        """The facts about the model, read once."""
        return model_facts(self.model)

    @property
    def num_rows(self) -> int:
        return len(self.input_ids)

    @property
    def num_prompt(self) -> int:
        """P, padding included."""
        return self.input_ids.shape[1]

    @property
    def has_filled_cache(self) -> bool:
        """Whether the caller's cache holds the prompt's first tokens."""
        return self.cache is not None and is_filled(self.cache)

    @property
    def state_layers(self) -> range:
        """The layers whose hidden states are returned, the embeddings among them."""
        is_wanted = self.config.output_hidden_states and self.config.return_dict_in_generate
        return range(self.facts.config.num_hidden_layers + 1 if is_wanted else 0)

    @property
    def end_tokens(self) -> list[int]:
        """The tokens that end a text."""
        ends = getattr(self.config, "_eos_token_tensor", None)
        return [] if ends is None else ends.flatten().tolist()

    def shared(self) -> list[object]:
        """The values on which ranks must agree: they decide which passes a call makes, and when it ends."""
        config = self.config
        return [
            self.input_ids.tolist(),
            self.mask.tolist(),
            (config.do_sample, config.max_length, config.eos_token_id, config.cache_implementation),
            [type(part).__name__ for part in (self.drafter, self.policy, *self.criteria)],
            self.trace is not None,
        ]
