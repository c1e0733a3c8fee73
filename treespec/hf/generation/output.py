"""The return value of a call of `generate`, and the observer that collects its parts."""

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import Cache, DynamicCache, StaticCache
from transformers.generation.utils import GenerateDecoderOnlyOutput

from treespec.engine.loop import Result, Run
from treespec.engine.observer import Observer, StepRecord
from treespec.engine.target_probs import TargetProbs
from treespec.errors import TreespecWarning
from treespec.hf.cache.growing import use_dynamic_layers
from treespec.hf.generation.call import Call
from treespec.hf.generation.stopping import TreeStopping
from treespec.hf.introspect import CACHE_NAME
from treespec.protocols import HiddenStates
from treespec.tree import Path

Output = Tensor | GenerateDecoderOnlyOutput


class Outputs(Observer):
    """Collects what the caller asked for in addition to the tokens: scores, logits, hidden states, steps.

    Attributes:
        kept: per row and token what is wanted: "scores" and "logits", float32 [V], and "hidden_states", [layers, H], of
            the node that gave the token.
        steps: all of them where the call records them.
    """

    def __init__(self, call: Call) -> None:
        self._call = call
        wanted = {"scores": call.config.output_scores, "logits": call.config.output_logits}
        wanted["hidden_states"] = call.config.output_hidden_states
        names = [name for name, is_wanted in wanted.items() if is_wanted and call.config.return_dict_in_generate]
        self.kept: dict[str, list[list[Tensor]]] = {name: [[] for _ in range(call.num_rows)] for name in names}
        self.steps: list[StepRecord] = []
        self._prompt: tuple[Tensor, ...] = ()

    def on_prefill(self, states: HiddenStates) -> None:
        """Keep the prompt's hidden states; a filled cache's tokens have none, as in plain `generate`."""
        self._prompt = tuple(states[layer] for layer in self._call.state_layers)
        if self._prompt and not self._call.has_filled_cache:  # Columns of nothing but padding were not computed.
            missing = self._call.num_prompt - self._prompt[0].shape[1]
            self._prompt = tuple(torch.nn.functional.pad(part, (0, 0, missing, 0)) for part in self._prompt)

    def on_path(self, row: int, probs: TargetProbs, index: int, path: Path) -> None:
        """Record the nodes of an accepted path: each gave the token after it."""
        if "scores" in self.kept:
            self.kept["scores"][row] += [probs.scores(index, node) for node in path]
        if "logits" in self.kept:
            self.kept["logits"][row] += [probs.logits[index, node].to(torch.float32, copy=True) for node in path]
        if "hidden_states" in self.kept:
            states = [probs.hidden_states[layer][index, list(path)] for layer in self._call.state_layers]
            self.kept["hidden_states"][row] += torch.stack(states, dim=1)

    def on_step(self, step: StepRecord) -> None:
        """Record the step if it is wanted."""
        if self._call.record_steps:
            self.steps.append(step)

    def scores_of(self, row: int, length: int) -> tuple[Tensor, ...] | None:
        """The scores [1, V] of the row's new tokens up to `length` ids, as plain decoding passes them to criteria."""
        if "scores" not in self.kept:
            return None
        return tuple(s.unsqueeze(0) for s in self.kept["scores"][row][: length - self._call.num_prompt])

    def returned(self, run: Run, result: Result) -> Output:
        """The return value of `generate`, ids or an object; all rows of a joint call are cut to its length."""
        call, stopping = self._call, run.stopping
        end = stopping.joint_length if isinstance(stopping, TreeStopping) else None
        limit = None if end is None else end - call.num_prompt
        emitted = [tokens[:limit] for tokens in result.tokens]
        rows = [torch.tensor(tokens, dtype=torch.int64, device="cpu") for tokens in emitted]
        pad = getattr(call.config, "_pad_token_tensor", None)
        padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=0 if pad is None else int(pad))
        sequences = torch.cat([call.input_ids, padded.to(call.input_ids)], dim=1)
        # A compiled target keeps its cache for later calls.
        cache = _final_cache(call, getattr(run.target, "returned_cache", getattr(run.target, "cache", None)))
        if not call.config.return_dict_in_generate:
            return sequences
        lengths = list(map(len, emitted))
        return GenerateDecoderOnlyOutput(
            sequences=sequences,  # pyright: ignore[reportArgumentType]
            scores=self._stacked("scores", lengths),  # pyright: ignore[reportArgumentType]
            logits=self._stacked("logits", lengths),  # pyright: ignore[reportArgumentType]
            hidden_states=self._hidden_states(lengths),  # pyright: ignore[reportArgumentType]
            **{CACHE_NAME: cache},  # pyright: ignore[reportArgumentType]
        )

    def _stacked(self, name: str, lengths: Sequence[int]) -> tuple[Tensor, ...] | None:
        """One [B, ...] per position of rows that emitted `lengths[b]` tokens; zeros after a row's end."""
        if name not in self.kept:
            return None
        rows = self.kept[name]
        blank = torch.zeros_like(rows[0][0])
        return tuple(
            torch.stack([row[i] if i < length else blank for row, length in zip(rows, lengths, strict=True)])
            for i in range(max(lengths))
        )

    def _hidden_states(self, lengths: Sequence[int]) -> tuple[tuple[Tensor, ...], ...] | None:
        """As plain `generate` returns them: per token and layer [B, 1, H]; the first are the prompt's, [B, P, H]."""
        steps = self._stacked("hidden_states", lengths)
        if steps is None:
            return None
        return (self._prompt, *(tuple(step.unsqueeze(2).unbind(1)) for step in steps[1:]))


def _final_cache(call: Call, own: Cache | None) -> Cache | None:
    """The target's own, as plain decoding would leave it; None for a batch, whose rows end raggedly.

    An empty `DynamicCache` that the caller gave receives the text's keys and values.
    """
    is_given = isinstance(call.cache, StaticCache) and call.config.cache_implementation is None
    if is_given and call.cache is not own:
        warnings.warn(
            "the given StaticCache stays empty: pass a DynamicCache to continue from it, or none",
            TreespecWarning,
            stacklevel=2,
        )
    if call.num_rows > 1:
        return None
    if own is not None:
        use_dynamic_layers(own)
    if isinstance(call.cache, DynamicCache) and isinstance(own, DynamicCache):
        call.cache.layers[:] = own.layers
        return call.cache
    return own
