"""The hook by which another attention serves the tree passes of a model: `treespec.optimize` registers its own here."""

from typing import Protocol
from weakref import WeakKeyDictionary

from jaxtyping import Float
from torch import Tensor, nn


class ServingAttention(Protocol):
    """Attention of few queries, with a mask as it reads it."""

    def serves(
        self, query: Float[Tensor, "B A F d"], key: Float[Tensor, "B G S d"], value: Float[Tensor, "B G S d"]
    ) -> bool:
        """Whether it takes such states."""
        ...

    def as_panels(self, mask: Float[Tensor, "B 1 F S"], num_groups: int) -> Float[Tensor, "B _ S _"]:
        """An additive mask as it reads it, for this many query heads per key head."""
        ...

    def run(
        self,
        query: Float[Tensor, "B A F d"],
        key: Float[Tensor, "B G S d"],
        value: Float[Tensor, "B G S d"],
        panels: Float[Tensor, "B _ S _"] | None,
        scale: float,
    ) -> Float[Tensor, "B F A d"]:
        """What the queries read."""
        ...


_served: WeakKeyDictionary[nn.Module, ServingAttention] = WeakKeyDictionary()


def serve_attention(model: nn.Module, attention: ServingAttention) -> None:
    """Let tree passes of a model attend by this one, until `leave_attention`."""
    _served[model] = attention


def leave_attention(model: nn.Module) -> None:
    """Undo `serve_attention`; a model that is not served is left unchanged."""
    _served.pop(model, None)


def attention_of(model: nn.Module) -> ServingAttention | None:
    """What serves a model."""
    return _served.get(model)
