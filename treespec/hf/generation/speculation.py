"""The public face: `TreeSpeculation`, a `custom_generate` object for transformers' own `generate`, and `generate`."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Unpack

from torch import Tensor
from transformers import GenerationConfig, LogitsProcessorList, PreTrainedModel, StoppingCriteriaList
from transformers.generation.streamers import BaseStreamer

from treespec.engine.loop import speculate
from treespec.engine.observer import Observer, StepRecord
from treespec.engine.stats import SpeculationStats
from treespec.errors import ConfigError
from treespec.hf.add_ons import ADD_ONS, RARE
from treespec.hf.generation.adapters import LearnedByAdapters
from treespec.hf.generation.call import Call, Options
from treespec.hf.generation.config_fields import check_fields, given_fields, own_stop_strings
from treespec.hf.generation.decode import run_of
from treespec.hf.generation.output import Output, Outputs
from treespec.hf.generation.target import in_use
from treespec.hf.generation.validate import Inputs, ModelArguments, Tokenizer, check_ids, with_prompts
from treespec.hf.introspect import check_model
from treespec.hf.loading.as_drafter import AnyDrafter, as_drafter
from treespec.policies import as_policy
from treespec.protocols import Drafter, TreePolicy, VerificationRule
from treespec.verification import get_rule


class _Turns:
    """One call at a time: other threads wait; a copy is free."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner: int | None = None

    def __enter__(self) -> None:
        if self._owner == threading.get_ident():
            raise ConfigError("this TreeSpeculation is decoding already: a call within its call needs another object")
        self._lock.acquire()
        self._owner = threading.get_ident()

    def __exit__(self, *error: object) -> None:
        self._owner = None
        self._lock.release()

    def __reduce__(self) -> tuple[type["_Turns"], tuple[()]]:
        return _Turns, ()


@contextmanager
def _ending(streamer: BaseStreamer | None) -> Iterator[None]:
    """Ends the stream in any case: an error must not leave its reader waiting."""
    try:
        yield
    finally:
        if callable(end := getattr(streamer, "end", None)):
            end()


class TreeSpeculation:
    """Speculative decoding by token trees, as `model.generate(..., custom_generate=TreeSpeculation(drafter))`.

    The output distribution is the model's own in evaluation mode: identical tokens when greedy (near-ties in floating
    point aside), the same distribution when sampling. The object is reusable; calls from several threads wait for each
    other, and `stats` and `steps` are those of the call that ended last.

    Args:
        drafter: a `Drafter`, a causal language model with the target's vocabulary, or a list of them to be merged.
        tree: "auto" chooses at every step what is predicted to be fastest, see `Control`; else a `TreePolicy`, a list
            of rank paths (or its literal), or a node budget, root included.
        verification: "auto" (target walk for selected children, otherwise traversal), a rule's name, or a rule.
        tokenizer: for `stop_strings`, for prompts given to `treespec.generate` as strings, and under a constraint for
            drafting text that must follow.
        streamer: gets the prompt, every accepted chunk int64 [1, k] and `end()`; batch size one.
        stop_strings: strings that end a row (transformers' own `stop_strings=` cannot reach a custom_generate object).
        seed: of the draft, coin and target streams; None takes one draw from torch's default generator per call.
        trace: a path or a `TraceFile` that every step is appended to, see `read_trace`. Its time is not in
            the times of trace and statistics.
        progress: show a bar of the emitted tokens, with tokens per pass, on the standard error.
        compile: run the target's passes over new nodes through `torch.compile`, from a static cache that later calls
            use again; a mapping holds its options, such as {"mode": "reduce-overhead"} for CUDA graphs. There is one
            compilation per number of rows, power of two up to the widest tree, and of the text's length. "auto": where
            that was measured to be faster, once per model and machine (minutes, with a bar), and the call allows it.
        record_steps: keep one `StepRecord` per step of the last call in `steps`.
        observers: what watches every call, see `Observer`; `AddOn`s among them also change its parts.

    Attributes:
        options: an `Options`, frozen; assign `dataclasses.replace(speculation.options, seed=1)` to change one.
        stats: of the last call.
        total_stats: of all calls.
        steps: see `record_steps`.
        last_call: what `treespec.diagnose` needs of the last call.

    Raises `ConfigError`: an option of the wrong kind or out of range, an unknown rule.
    """

    def __init__(
        self,
        drafter: AnyDrafter | Sequence[AnyDrafter],
        *,
        tree: TreePolicy | str | Sequence[Sequence[int]] | int = "auto",
        verification: str | VerificationRule = "auto",
        tokenizer: Tokenizer | None = None,
        streamer: BaseStreamer | None = None,
        stop_strings: str | Sequence[str] | None = None,
        seed: int | None = None,
        compile: bool | str | Mapping[str, object] = False,
        record_steps: bool = False,
        progress: bool = False,
        trace: object = None,
        observers: Sequence[Observer] = (),
    ) -> None:
        self.options = Options(
            drafter=as_drafter(drafter),
            policy=as_policy(tree),
            verification=verification if verification == "auto" else get_rule(verification),
            tokenizer=tokenizer,
            streamer=streamer,
            stop_strings=stop_strings,
            seed=seed,
            record_steps=record_steps,
            progress=progress,
            trace=None if trace is None else ADD_ONS["trace"](trace),
            observers=observers,
            compiled=None if compile is None or compile is False else RARE["compile"](compile),
        )
        self.stats, self.total_stats = SpeculationStats(), SpeculationStats()
        self.steps: list[StepRecord] = []
        self._turns = _Turns()
        self._learned = LearnedByAdapters()
        self.last_call: Call | None = None

    def __getstate__(self) -> dict[str, object]:
        """Copies do not know the last call's model."""
        return {**vars(self), "last_call": None}

    def __repr__(self) -> str:
        options = self.options
        return f"TreeSpeculation({self.drafter!r}, tree={options.policy!r}, verification={options.verification!r})"

    @property
    def drafter(self) -> Drafter:
        """The drafter of the options."""
        return self.options.drafter

    def __call__(
        self,
        model: PreTrainedModel,
        input_ids: Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        _options: Options | None = None,
        **model_kwargs: Unpack[ModelArguments],
    ) -> Output:
        """Decode a call that `model.generate` has prepared: input_ids [B, P] to sequences [B, P + new].

        `_options` are a call's own, whose streamer the caller ends.

        Raises `TreespecError`: see `Call.of` and `run_of`; a `RanksDisagreeError` where processes that run the model
        together make other calls.
        """
        prepared = model, input_ids, logits_processor, stopping_criteria, generation_config, model_kwargs
        with _ending(self.options.streamer) if _options is None else nullcontext(), self._turns:
            call = Call.of(_options or self.options, *prepared)
            with self._elsewhere(call) as output:
                if output is not None:
                    return output
                call = self._learned.of(call, call.facts.adapters)
                with call.facts.ranks.together("call", call.shared):
                    outputs = Outputs(call)
                    run = run_of(call, outputs)
                    with in_use(call, run.target):
                        result = speculate(run)
                    self.stats, self.steps, self.last_call = result.stats, outputs.steps, call.over()
                    self.total_stats.add(result.stats)
                    return outputs.returned(run, result)

    def _elsewhere(self, call: Call) -> AbstractContextManager[Output | None]:
        """Around a call: its output, if something else than speculation has decoded it."""
        return nullcontext()


def generate(
    model: PreTrainedModel,
    inputs: Inputs | None = None,
    speculation: TreeSpeculation | None = None,
    *,
    streamer: BaseStreamer | None = None,
    tokenizer: Tokenizer | None = None,
    stop_strings: str | Sequence[str] | None = None,
    seed: int | None = None,
    **generation_kwargs: object,
) -> Output:
    """`model.generate` by speculation, with transformers' own preparation and all its keyword arguments.

    Args:
        model: any causal language model.
        inputs: input ids int64 [B, P] or as lists, what a tokenizer returns, or strings for the `tokenizer`; None where
            a tokenizer's output is spread over the keyword arguments, `generate(model, speculation=..., **inputs)`.
        speculation: the options.
        streamer: replaces the object's own for this call, as the next three do.
        tokenizer: see `TreeSpeculation`.
        stop_strings: see `TreeSpeculation`.
        seed: see `TreeSpeculation`.
        generation_kwargs: passed to `model.generate` (`max_new_tokens`, `do_sample`, `stopping_criteria`, ...).

    Returns:
        As `model.generate`; for strings too these are token ids, which `tokenizer.batch_decode` reads.

    Raises:
        ConfigError: not a model, no prompt or an empty one, strings without a tokenizer; see also `TreeSpeculation`.
        TreespecError: see `TreeSpeculation.__call__`.
    """
    check_model(model)
    if not isinstance(speculation, TreeSpeculation):
        raise ConfigError(
            f"speculation must be a TreeSpeculation, got {type(speculation).__name__}: "
            "generate(model, inputs, TreeSpeculation(drafter))"
        )
    with _ending(speculation.options.streamer if streamer is None else streamer):
        check_fields(given_fields(model, generation_kwargs))
        configured, generation_kwargs = own_stop_strings(model, generation_kwargs)
        own = {"streamer": streamer, "tokenizer": tokenizer, "stop_strings": stop_strings or configured, "seed": seed}
        options = replace(speculation.options, **{name: value for name, value in own.items() if value is not None})
        arguments = with_prompts(model, inputs, options.tokenizer, generation_kwargs)
        check_ids(model, arguments.get("inputs", arguments.get("input_ids")))
        return model.generate(  # pyright: ignore[reportCallIssue]
            **arguments, custom_generate=partial(speculation, _options=options)
        )
