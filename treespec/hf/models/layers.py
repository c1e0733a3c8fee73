"""Some of a model's decoder layers at a time: for one pass of this thread the others return their input unchanged.

Axis "streams": of models with several streams of hidden states.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from treespec.errors import ConfigError, UnsupportedModelError
from treespec.hf.introspect import text_modules


class SplitLayers:
    """The decoder layers of a model, split after the first `num_early`; a `ConfigError` if either part is empty."""

    def __init__(self, model: PreTrainedModel, num_early: int) -> None:
        layers = decoder_layers(model)
        if not 1 <= num_early < len(layers):
            needed = f"an early exit needs 1 to {len(layers) - 1} of them, got {num_early}"
            raise ConfigError(f"{type(model).__name__} has {len(layers)} layers: {needed}")
        self.num_layers = len(layers)
        self.num_early = num_early
        self._early = list(layers)[:num_early]
        self._late = list(layers)[num_early:]
        self._head = model.get_output_embeddings()
        self._rest: tuple[Any, ...] | None = None
        self._hidden: Float[Tensor, "*streams B F H"] | None = None

    @contextmanager
    def early_only(self, has_head: bool) -> Iterator[None]:
        """Passes skip the late layers, and the head too unless `has_head`: their logits mean nothing then."""
        last = self._early[-1]
        with ExitStack() as stack:
            stack.enter_context(_replaced_forward(last, self._recording(last.forward)))
            for layer in self._late:
                stack.enter_context(_replaced_forward(layer, self._skip))
            if not has_head and self._head is not None:
                stack.enter_context(_replaced_forward(self._head, lambda hidden: hidden[..., :1]))
            yield

    @contextmanager
    def late_only(self, hidden: Float[Tensor, "*streams B F H"]) -> Iterator[None]:
        """Passes skip the early layers: `hidden` is taken for what the last of them returns."""
        with ExitStack() as stack:
            for layer in self._early[:-1]:
                stack.enter_context(_replaced_forward(layer, self._skip))
            stack.enter_context(_replaced_forward(self._early[-1], lambda *_, **__: self._as_output(hidden)))
            yield

    def take_hidden(self) -> Float[Tensor, "*streams B F H"]:
        """What the last early layer returned in the latest early pass."""
        hidden, self._hidden = self._hidden, None
        if hidden is None:
            raise UnsupportedModelError("the model's layers were not called in an early pass")
        return hidden

    def _recording(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            output = forward(*args, **kwargs)
            is_tuple = isinstance(output, tuple)
            self._hidden, self._rest = (output[0], output[1:]) if is_tuple else (output, None)
            return output

        return run

    def _skip(self, *args: Any, **kwargs: Any) -> Any:
        return self._as_output(args[0] if args else kwargs["hidden_states"])

    def _as_output(self, hidden: Float[Tensor, "*streams B F H"]) -> Any:
        """A hidden state in the form that the model's layers return."""
        return hidden if self._rest is None else (hidden, *self._rest)


def decoder_layers(model: PreTrainedModel) -> nn.ModuleList:
    """The outermost list of modules as long as the configuration's layers. Raises `UnsupportedModelError`: none."""
    text = model.config.get_text_config()
    count = getattr(text, "num_hidden_layers", None)
    for module in text_modules(model).values():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return module
    raise UnsupportedModelError(f"{type(model).__name__} has no list of its {count} decoder layers: no early exit")


@contextmanager
def _replaced_forward(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Calls of the module from this thread run `forward`."""
    owner = threading.get_ident()
    before = module.forward
    own = vars(module).get("forward")

    def run(*args: Any, **kwargs: Any) -> Any:
        chosen = forward if threading.get_ident() == owner else before
        return chosen(*args, **kwargs)

    vars(module)["forward"] = run
    try:
        yield
    finally:
        if own is None:
            del vars(module)["forward"]
        else:
            vars(module)["forward"] = own
