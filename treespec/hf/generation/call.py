"""One call of `generate`: what it asks of the engine, and what it returns."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

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
from transformers.generation.utils import GenerateDecoderOnlyOutput

from treespec.engine.loop import hidden_layers, speculate
from treespec.engine.request import Request, Result
from treespec.errors import TreespecError
from treespec.hf.cache.caches import is_filled, twin_cache
from treespec.hf.generation.output_scores import EmittedScores
from treespec.hf.generation.processors import TreeProcessors
from treespec.hf.generation.stopping import TreeStopping
from treespec.hf.models.make_scorer import AnyScorer, make_exit_scorer, make_scorer
from treespec.protocols import Drafter, EarlyExitDrafter

if TYPE_CHECKING:
    from treespec.hf.generation.speculation import TreeSpeculation

Output = Tensor | GenerateDecoderOnlyOutput


class Call:
    """One call of `generate`, from prepared arguments to the returned sequences."""

    def __init__(
        self,
        options: TreeSpeculation,
        model: PreTrainedModel,
        input_ids: Tensor,
        mask: Tensor,
        processors: LogitsProcessorList,
        criteria: StoppingCriteriaList,
        config: GenerationConfig,
        cache: Cache | None,
    ) -> None:
        """Make the target and the request.

        Args:
            options: the object that `generate` was given.
            model: the target.
            input_ids, mask: int64 [B, P], bool [B, P], False on left padding.
            processors, criteria, config: as `generate` prepares them.
            cache: the caller's, or what `generate` prepares.

        Raises:
            TreespecError: see `make_scorer`, `make_exit_scorer` and `TreeProcessors`.
        """
        self.options, self.input_ids, self.config, self.cache = options, input_ids, config, cache
        num_rows, prompt_length = input_ids.shape
        self.recorder = EmittedScores.for_config(config, num_rows, prompt_length)
        if options.stop_strings is not None:
            strings = [options.stop_strings] if isinstance(options.stop_strings, str) else list(options.stop_strings)
            criteria = StoppingCriteriaList([*criteria, StopStringCriteria(options.tokenizer, strings)])
        # The rows of a batch end raggedly, which no cache of the caller's could go on from: theirs stays as it is.
        own = twin_cache(cache) if num_rows > 1 and cache is not None and is_filled(cache) else cache
        self.target = _make_target(model, options.drafter, own, self._num_slots())
        scores_of = self.recorder.scores_of if self.recorder else None
        self.stopping = TreeStopping(criteria, num_rows, self.target.max_positions, scores_of)
        self.request = Request(
            prompt_ids=input_ids,
            prompt_mask=mask,
            stopping=self.stopping,
            policy=options.policy,
            verification=options.verification,
            processors=TreeProcessors(processors, num_rows),
            is_sampling=bool(config.do_sample),
            seed=options.seed,
            on_tokens=self._stream if options.streamer is not None else None,
            on_target_probs=self.recorder,
            has_records=options.record_steps,
        )

    def decode(self) -> Result:
        """Decode until every row has stopped; raises as `speculate` does."""
        try:
            return speculate(self.target, self.options.drafter, self.request)
        except BaseException:
            # A caller's own cache must not be left with tree nodes in it.
            if self.input_ids.shape[0] == 1:
                with suppress(TreespecError):
                    self.target.commit([()])
            raise

    def output(self, result: Result) -> Output:
        """What `generate` returns."""
        emitted = self._emitted(result)
        sequences, cache = self._sequences(emitted), self._final_cache()
        if not self.config.return_dict_in_generate:
            return sequences
        lengths = list(map(len, emitted))
        return GenerateDecoderOnlyOutput(
            sequences=sequences,  # pyright: ignore[reportArgumentType]
            scores=self.recorder.scores(lengths) if self.recorder else None,  # pyright: ignore[reportArgumentType]
            logits=self.recorder.logits(lengths) if self.recorder else None,  # pyright: ignore[reportArgumentType]
            past_key_values=cache,
        )

    def _final_cache(self) -> Cache | None:
        """The cache of a single row, as plain decoding would leave it; None for a batch, whose rows end raggedly.

        A growing cache that the caller gave empty is filled.
        """
        if self.input_ids.shape[0] > 1:
            return None
        cache = self.target.cache
        if isinstance(self.cache, DynamicCache) and isinstance(cache, DynamicCache) and self.cache is not cache:
            self.cache.layers[:] = cache.layers
            return self.cache
        return cache

    def _num_slots(self) -> int | None:
        """Slots for a static cache: the whole text, one tree, and room for the holes of ragged rows."""
        if self.config.cache_implementation != "static":
            return None
        return int(self.config.max_length or 0) + 2 * self.options.policy.max_nodes

    def _emitted(self, result: Result) -> list[list[int]]:
        """What every row emitted, up to where a joint call ends for all."""
        end = self.stopping.joint_length
        limit = None if end is None else end - self.input_ids.shape[1]
        return [tokens[:limit] for tokens in result.tokens]

    def _sequences(self, emitted: Sequence[Sequence[int]]) -> Tensor:
        """Prompts and emitted tokens, right-padded with the pad token: int64 [B, P + new]."""
        rows = [torch.tensor(tokens, dtype=torch.int64) for tokens in emitted]
        pad = getattr(self.config, "_pad_token_tensor", None)
        padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=0 if pad is None else int(pad))
        return torch.cat([self.input_ids, padded.to(self.input_ids)], dim=1)

    def _stream(self, row: int, tokens: list[int]) -> None:
        assert self.options.streamer is not None
        self.options.streamer.put(torch.tensor([tokens]))


def _make_target(model: PreTrainedModel, drafter: Drafter, cache: Cache | None, max_cache_len: int | None) -> AnyScorer:
    """The scorer that returns what the drafter reads, and that drafts if the drafter has it draft."""
    options: dict[str, Any] = {"cache": cache, "max_cache_len": max_cache_len, "hidden_layers": hidden_layers(drafter)}
    if isinstance(drafter, EarlyExitDrafter) and drafter.exit_layer is not None:
        return make_exit_scorer(model, drafter.exit_layer, **options)
    return make_scorer(model, **options)
