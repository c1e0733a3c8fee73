"""Rotary positions whose frequencies depend on the text's length (dynamic NTK, longrope), as plain decoding has them.

Such a module turns all tokens of a pass by the frequencies of the highest position in it. Plain decoding makes one pass
per token, so that every token's key keeps the frequencies of the text that ended with it; in a tree's pass, deeper
nodes would change those of all others. Here every node is turned as in the plain pass that would read it. Plain
decoding moves all rows of a batch together: the longest one decides.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedModel

from treespec.hf.introspect import text_modules
from treespec.hf.thread_patches import replaced


class RopeByLength:
    """The rotary modules of a model that look at a pass's highest position; false where there are none.

    Attributes:
        threshold: the longest text, in tokens, that has the same frequencies as all shorter ones; None: all have.
    """

    def __init__(self, model: PreTrainedModel, modules: Mapping[str, nn.Module] | None = None) -> None:
        lengths = {module: threshold_of(module) for module in text_modules(model, modules).values()}
        readers = [module for module, length in lengths.items() if length is not None]
        # Copies, as such a module changes from pass to pass: other threads' passes use the model's own.
        self._modules = [(module, deepcopy(module, {id(module.config): module.config})) for module in readers]
        self.threshold = min((length for length in lengths.values() if length is not None), default=None)
        self._first = 0
        self._behind: Int[Tensor, " B"] = torch.zeros(1, dtype=torch.int64, device="cpu")

    def __bool__(self) -> bool:
        return bool(self._modules)

    def is_exceeded_by(self, longest: int | None) -> bool:
        """Whether texts of this many tokens, None: of any number, have other frequencies than short ones."""
        return self.threshold is not None and (longest is None or longest > self.threshold)

    def start(self, last_positions: Int[Tensor, "*rows B 1"]) -> None:
        """Begin a text: the positions of the prompts' last tokens, which plain decoding reads in one pass."""
        if self:
            last = _highest(last_positions).squeeze(1).cpu()
            self._first, self._behind = int(last.max()) + 1, last.max() - last

    def select_rows(self, rows: Sequence[int]) -> None:
        """Keep only these rows, in this order; the others would still be in plain decoding's passes."""
        if self:
            self._behind = self._behind[list(rows)]

    @contextmanager
    def apart(self) -> Iterator[None]:
        """This thread's passes, made as the model makes them, do not share their frequencies with other threads'."""
        with ExitStack() as stack:
            for module, copy in self._modules:
                stack.enter_context(replaced(module, "forward", copy.forward))
            yield

    @contextmanager
    def applied(self, position_ids: Int[Tensor, "*rows B F"]) -> Iterator[None]:
        """This thread's passes over nodes at these positions turn them as plain decoding would."""
        if self.threshold is None:
            yield
            return
        positions = _highest(position_ids)
        lengths = (positions + self._behind.to(positions.device).unsqueeze(1) + 1).clamp(min=self._first)
        lengths = lengths.clamp(min=self.threshold)  # All shorter texts have the same frequencies: one turn.
        with ExitStack() as stack:
            for module, copy in self._modules:
                stack.enter_context(replaced(module, "forward", _by_length(copy, lengths)))
            yield


def rereading_length(model: PreTrainedModel, rope: RopeByLength) -> int | None:
    """The longest text before `generate` reads all of it again by other frequencies (Phi-3); None: it never does."""
    kind: Any = type(model)
    shared: Any = GenerationMixin
    has_own_passes = kind.prepare_inputs_for_generation is not shared.prepare_inputs_for_generation
    return getattr(model.config, "original_max_position_embeddings", None) if rope and has_own_passes else None


def threshold_of(module: Any) -> int | None:
    """The longest text that a rotary module of transformers turns by its first frequencies; None: it has no other."""
    kinds: Any = vars(module).get("rope_type")  # Most modules have none, for which `getattr` writes a message first.
    if kinds is None or (config := getattr(module, "config", None)) is None:
        return None
    settings = config.rope_parameters
    by_layer = kinds if isinstance(kinds, dict) else {None: kinds}
    lengths = [
        config.max_position_embeddings
        if "dynamic" in kind
        else (settings if layer is None else settings[layer])["original_max_position_embeddings"]
        for layer, kind in by_layer.items()
        if "dynamic" in kind or kind == "longrope"
    ]
    return min(lengths, default=None)


def _highest(position_ids: Int[Tensor, "*rows B F"]) -> Int[Tensor, "B F"]:
    """One position per token, also where positions have several rows (M-RoPE)."""
    return position_ids if position_ids.ndim == 2 else position_ids.amax(0)


def _by_length(module: nn.Module, lengths: Int[Tensor, "B F"]) -> Callable[..., Any]:
    """A rotary module's forward that turns every node by the frequencies of its own text length, from `lengths`."""

    def turn(x: Tensor, position_ids: Int[Tensor, "*rows B F"], *args: Any, **kwargs: Any) -> Any:
        found: Any = None
        own = lengths.to(position_ids.device)
        start = torch.zeros_like(position_ids[..., :1])
        for length in own.unique().tolist():
            # Dynamic NTK keeps the frequencies of the longest text so far until a pass over a short one.
            module.forward(x, start, *args, **kwargs)
            last = torch.full_like(start, length - 1)
            turned = module.forward(x, torch.cat([position_ids.clamp(max=length - 1), last], -1), *args, **kwargs)
            found = _chosen(own == length, turned, found)
        return found

    return turn


def _chosen(is_node: Tensor, turned: Any, others: Any) -> Any:
    """`others` with the nodes of one length replaced; cosines and sines, or complex numbers, [..., B, F, d]."""
    if isinstance(turned, tuple):
        pairs = zip(turned, (None,) * len(turned) if others is None else others, strict=True)
        return tuple(_chosen(is_node, *pair) for pair in pairs)
    turned = turned[..., :-1, :]
    return turned if others is None else torch.where(is_node.unsqueeze(-1), turned, others)
