"""transformers' own server (`transformers serve`) with one `speed_up` per model instead of plain `generate`.

Every class here is one of transformers' with the one method changed that speculation needs; HTTP, streams, templates
and tools are theirs. Requests for a model are served one after the other, as there.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterable, AsyncIterator, Callable
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel
from transformers.cli.serving.chat_completion import ChatCompletionHandler
from transformers.cli.serving.completion import CompletionHandler
from transformers.cli.serving.model_manager import ModelManager
from transformers.cli.serving.response import ResponseHandler
from transformers.cli.serving.utils import GenerateManager, GenerationState
from transformers.generation.streamers import BaseStreamer

from treespec.engine.stats import SpeculationStats
from treespec.hf import generate
from treespec.speedup import SpedUp, speed_up

REQUEST = "treespec_request"
"""The argument of `Speculating` that names a request."""
COMPLETED = '"type":"response.completed"'
"""A mark of the last event in a stream of `/v1/responses`."""
MOST_KEPT = 64
"""Requests whose statistics wait to be taken."""


class Speculating:
    """A substitute for a model's `generate` that decodes by speculation.

    Attributes:
        metrics: of finished requests, until they are taken.
    """

    def __init__(self, model: PreTrainedModel, speculation: SpedUp) -> None:
        self._model, self.speculation = model, speculation
        self._plain: Callable[..., Any] = model.generate  # pyright: ignore[reportAttributeAccessIssue]
        self.metrics: dict[str, dict[str, Any]] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if "custom_generate" in kwargs:  # From `treespec.generate`, or somebody's own.
            return self._plain(*args, **kwargs)
        tokenizer, request = kwargs.pop("tokenizer", None), kwargs.pop(REQUEST, None)
        before = self.speculation.stats
        streamer: Any = RowStreamer(kwargs.pop("streamer", None), lambda: self._finish(request, before))
        tokenizer = getattr(tokenizer, "tokenizer", tokenizer)
        return generate(
            self._model, *args, speculation=self.speculation, tokenizer=tokenizer, streamer=streamer, **kwargs
        )

    def _finish(self, request: str | None, before: SpeculationStats) -> None:
        """Keep a call's statistics, unless it failed and those of the call before are still there."""
        if request is not None and self.speculation.stats is not before:
            self.metrics[request] = metrics_of(self.speculation.stats)
            if len(self.metrics) > MOST_KEPT:  # Nobody takes those of clients that left, or of other endpoints.
                self.metrics.pop(next(iter(self.metrics)))


class RowStreamer(BaseStreamer):
    """Gives a streamer, if there is one, the tokens of the only row, int64 [k], as plain `generate` does.

    `at_end` is called before the stream ends, as its reader does not wait for `generate`.
    """

    def __init__(self, streamer: Any, at_end: Callable[[], None]) -> None:
        self._streamer, self._at_end = streamer, at_end

    def put(self, value: Tensor) -> None:
        if self._streamer is not None:
            self._streamer.put(value.reshape(-1))

    def end(self) -> None:
        self._at_end()
        if self._streamer is not None:
            self._streamer.end()


class SpeculatingModels(ModelManager):
    """Loads models whose `generate` is `Speculating`."""

    def load_model_and_processor(self, *args: Any, **kwargs: Any) -> Any:
        model, processor = super().load_model_and_processor(*args, **kwargs)
        if not isinstance(vars(model).get("generate"), Speculating):
            vars(model)["generate"] = Speculating(model, speed_up(model))
        return model, processor


class NamedRequests(GenerateManager):
    """Says to `generate` which request it serves."""

    def generate_streaming(
        self, model: Any, processor: Any, inputs: Any, gen_config: Any, request_id: str, response_parser: Any = None
    ) -> Any:
        named = {**inputs, REQUEST: request_id}
        return super().generate_streaming(model, processor, named, gen_config, request_id, response_parser)

    async def generate_non_streaming(
        self, model: Any, processor: Any, inputs: Any, gen_config: Any, request_id: str
    ) -> Any:
        named = {**inputs, REQUEST: request_id}
        return await super().generate_non_streaming(model, processor, named, gen_config, request_id)


class NamedStates(GenerationState):
    """Generation one request after the other, by `NamedRequests`."""

    def get_manager(self, model_id: str, use_cb: bool = False) -> Any:
        return self._generate_managers.setdefault(model_id, NamedRequests())


class WithMetrics:
    """Mixin placed before a handler of transformers in the MRO: finished requests carry their statistics."""

    def _metrics(self, request_id: str) -> dict[str, Any] | None:
        manager: ModelManager = self.model_manager  # pyright: ignore[reportAttributeAccessIssue]
        for timed in list(manager.loaded_models.values()):
            made = vars(timed.model).get("generate") if timed.model is not None else None
            if isinstance(made, Speculating) and request_id in made.metrics:
                return made.metrics.pop(request_id)
        return None

    async def _non_streaming(self, request_id: str, *args: Any, **kwargs: Any) -> Any:
        response = await super()._non_streaming(request_id, *args, **kwargs)  # pyright: ignore[reportAttributeAccessIssue]
        return type(response)(self._measured(request_id, json.loads(response.body)), media_type=response.media_type)

    def _build_chunk_sse(self, request_id: str = "", *args: Any, **kwargs: Any) -> str:
        text = super()._build_chunk_sse(request_id, *args, **kwargs)  # pyright: ignore[reportAttributeAccessIssue]
        if kwargs.get("finish_reason") is None:
            return text
        return f"data: {json.dumps(self._measured(request_id, json.loads(text.removeprefix('data: '))))}\n\n"

    def _measured(self, request_id: str, body: dict[str, Any]) -> dict[str, Any]:
        metrics = self._metrics(request_id)
        return body if metrics is None else body | {"metrics": {"speculative_decoding": metrics}}


class Chat(WithMetrics, ChatCompletionHandler):
    """`/v1/chat/completions`."""


class Completion(WithMetrics, CompletionHandler):
    """`/v1/completions`."""


class Responses(WithMetrics, ResponseHandler):
    """`/v1/responses`; a stream's last event holds the whole response."""

    def _streaming(self, request_id: str, *args: Any, **kwargs: Any) -> Any:
        response = super()._streaming(request_id, *args, **kwargs)
        response.body_iterator = self._with_metrics(request_id, response.body_iterator)
        return response

    async def _with_metrics(self, request_id: str, texts: AsyncIterable[Any]) -> AsyncIterator[str]:
        async for text in texts:
            if COMPLETED in text:  # Quotes in texts are escaped.
                event = json.loads(text.removeprefix("data: "))
                text = f"data: {json.dumps(event | {'response': self._measured(request_id, event['response'])})}\n\n"
            yield text


def metrics_of(stats: SpeculationStats) -> dict[str, Any]:
    """A request's statistics in the form of vLLM's `metrics.speculative_decoding`."""
    longest = max(stats.acceptance_histogram, default=0)
    return {
        "mean_acceptance_length": stats.mean_acceptance_length or 1.0,
        "draft_acceptance_rate": stats.draft_acceptance_rate,
        "acceptance_histogram": [stats.acceptance_histogram[count] for count in range(longest + 1)],
        "num_spec_steps": stats.num_drafts,
        "num_accepted_draft_tokens": stats.num_accepted_tokens,
        "num_draft_tokens": stats.num_draft_tokens,
    }
