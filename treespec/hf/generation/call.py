"""What one call of `generate` is given: the options of `TreeSpeculation` and what transformers has prepared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol
from weakref import ReferenceType

from jaxtyping import Int64
from torch import Tensor
from transformers import Cache, GenerationConfig, LogitsProcessorList, PreTrainedModel, StoppingCriteriaList
from transformers.generation.streamers import BaseStreamer

from treespec.engine.observer import Observer
from treespec.errors import ConfigError
from treespec.hf.models.prompt import PromptInputs
from treespec.protocols import Drafter, TreePolicy, VerificationRule

if TYPE_CHECKING:
    from treespec.hf.models.compiled_target import CompiledTarget


class Watcher(Protocol):
    """What watches calls, such as a `TraceFile`."""

    def observer(self, call: Prepared, options: Options) -> Observer | None:
        """What observes this call; None: nothing does."""
        ...


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
    progress: bool = False
    trace: Watcher | None = None
    compiled: CompiledTarget | None = None
    drafter_names: tuple[str, ...] | None = None
    """The drafters' names, where a setting file gave them."""

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
    def most_tokens(self) -> int | None:
        """That all rows may emit; None where their length is not limited."""
        longest = self.config.max_length
        return None if longest is None else self.num_rows * max(longest - self.input_ids.shape[1], 0)

    @property
    def num_rows(self) -> int:
        return self.input_ids.shape[0]

    @property
    def state_layers(self) -> range:
        """The layers whose hidden states are returned, the embeddings among them."""
        is_wanted = self.config.output_hidden_states and self.config.return_dict_in_generate
        return range(self.model.config.get_text_config().num_hidden_layers + 1 if is_wanted else 0)

    @property
    def end_tokens(self) -> list[int]:
        """The tokens that end a text."""
        ends = getattr(self.config, "_eos_token_tensor", None)
        return [] if ends is None else ends.flatten().tolist()


@dataclass(frozen=True)
class LastCall:
    """What is known of a call when it is over. It does not keep the model."""

    model: ReferenceType[PreTrainedModel]
    config: GenerationConfig
    options: Options
    prompt_lengths: Int64[Tensor, "B"]
    """On the model's device: an ordinary call does not wait for them."""
    processors: list[str]


def what_ranks_share(call: Prepared, options: Options) -> list[Any]:
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
