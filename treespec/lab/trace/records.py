"""The contents of a trace: calls, and in each one record per step and row."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

import torch
from torch import Tensor

from treespec.errors import TraceError
from treespec.tree import TokenTree, Verdict

FORMAT = "treespec-trace-2"


@dataclass(frozen=True)
class TracedStep:
    """One step of one row: a tree of N nodes, what the models said of it, and what became of it.

    Args:
        step: its number in the call.
        row: its number in the caller's batch.
        num_rows: rows at work in this step.
        context: tokens of the text before the step, the root included, padding not.
        tokens: [N], as in `TokenTree`.
        parents: [N], as in `TokenTree`.
        draft_probs: [N], the draft's probability of a node's token after its parent: of a sampled child the one that it
            was drawn with, of a selected one the drafter's estimate. None where the drafter gives none.
        target_probs: [N], the target's, after the logits processors; in greedy decoding the softmax of its scores.
        drafters: node ids by the name of the drafter that proposed them; several may have proposed one.
        rule: the name of the verification rule that was applied; of one that no registered name stands for, such as
            `ThresholdAcceptance(single=0.1)`, "unregistered " and what it is.
        coins: [N], the rule's uniform numbers for accepting a node; None in greedy decoding.
        draws: [N], those for drawing a token after it.
        draft_index: [N], rows of the table of draft distributions (`TokenTree`); None: all children were selected.
        is_without_replacement: [N], see `TokenTree`.
        path: the accepted one, in recorded ids, the node ids of this tree.
        next_token: the token after it.
        is_bonus: whether the path ends in a leaf.
        next_prob: the target's probability of the next token.
        top_prob: the target's highest probability after the path's last node.
        residual_mass: the part of the target's distribution that the children of the path's last node leave, each
            rejected in turn: one minus their probabilities where they were selected. None at a leaf.
        emitted: the tokens that the text grew by, cut where generation stopped.
        pieces: the text that each emitted token added; empty without a tokenizer.
        seconds: by phase (`PHASES`; the first step is the prompt's, with the prefill), the whole batch's; "processors",
            part of drafting and verification, is the time in logits processors; "other" is what no phase counts.
        waits: how often the host waited for the device to copy something.
        choice: what `tree="auto"` chose: `name`, `reason`, `tokens_per_second` by candidate; None with another policy.
        shard: the file of the step's distributions, next to the trace; None where they were not recorded.
    """

    step: int
    row: int
    num_rows: int
    context: int
    tokens: list[int]
    parents: list[int]
    draft_probs: list[float | None]
    target_probs: list[float | None]
    drafters: dict[str, list[int]]
    rule: str
    coins: list[float] | None
    draws: list[float] | None
    draft_index: list[int] | None
    is_without_replacement: list[bool] | None
    is_width_fixed: bool
    path: list[int]
    next_token: int
    is_bonus: bool
    next_prob: float | None
    top_prob: float | None
    residual_mass: float | None
    emitted: list[int]
    pieces: list[str]
    seconds: dict[str, float]
    waits: int
    choice: dict[str, Any] | None
    shard: str | None

    @property
    def num_nodes(self) -> int:
        return len(self.tokens)

    @property
    def accepted(self) -> list[int]:
        """The accepted nodes whose tokens were emitted, root excluded."""
        return self.path[1 : 1 + len(self.emitted)]

    @property
    def verdict(self) -> Verdict:
        return Verdict(tuple(self.path), self.next_token, self.is_bonus)

    def tree(self, draft_probs: Tensor | None = None) -> TokenTree:
        """The drafted tree with its table of draft distributions [R, V]; None: all children count as selected."""
        tokens, parents = (torch.tensor(ids, device="cpu") for ids in (self.tokens, self.parents))
        if draft_probs is None or self.draft_index is None:
            return TokenTree(tokens, parents, is_width_fixed=self.is_width_fixed)
        index, flags = (torch.tensor(part, device="cpu") for part in (self.draft_index, self.is_without_replacement))
        return TokenTree(tokens, parents, draft_probs, index, flags, self.is_width_fixed)

    def children(self, node: int) -> list[int]:
        """Child ids in verification order."""
        return [child for child, parent in enumerate(self.parents) if parent == node]

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Raises `TraceError`: fields are missing, or those of the tree do not fit together."""
        names = [field.name for field in fields(cls)]
        if missing := [name for name in names if name not in data]:
            raise TraceError(f"a step lacks {', '.join(missing)}")
        step = cls(**{name: data[name] for name in names})
        lists = (step.tokens, step.parents, step.draft_probs, step.target_probs)
        if not all(isinstance(values, list) and len(values) == len(step.parents) > 0 for values in lists):
            raise TraceError("a step's tokens, parents and probabilities must be lists of one length")
        if any(not -1 <= parent < node for node, parent in enumerate(step.parents)):
            raise TraceError("a step's parents are not those of a tree")
        if not step.path or not all(0 <= node < len(step.parents) for node in step.path):
            raise TraceError("a step's path is not one of its tree")
        return step


def pass_ms_of(about: Mapping[str, Any]) -> dict[int, float] | None:
    """The target's measured passes of one row in ms, by number of nodes; None where nothing was measured."""
    found = about.get("pass_ms")
    return {int(nodes): float(ms) for nodes, ms in found.items()} if found else None


@dataclass(frozen=True)
class TracedCall:
    """One call of `generate`.

    Args:
        about: what is known of it: `model`, `drafter`, `policy`, `rule`, `is_sampling`, `sampling` (the settings that
            change anything), `processors`, `prompt_ids` (by row, without padding), `prompt`, `seed`,
            `device`, `pass_ms`, `versions`, ...
        texts: the text of every token that occurs, by its id; empty without a tokenizer.
        end: why the record ends; None: the process was interrupted, or is still at work.
    """

    about: dict[str, Any]
    steps: list[TracedStep]
    texts: dict[int, str]
    end: str | None = None

    @property
    def sampling(self) -> str:
        """How tokens were chosen, in words."""
        settings = ", ".join(f"{name}={value}" for name, value in self.about.get("sampling", {}).items())
        return f"{'sampling' if self.about.get('is_sampling') else 'greedy'} {settings}".strip()


@dataclass(frozen=True)
class Trace:
    """A trace file. `is_cut`: its last line is incomplete and was left out."""

    path: str
    calls: list[TracedCall]
    is_cut: bool = False

    @property
    def steps(self) -> list[TracedStep]:
        """The steps of all calls."""
        return [step for call in self.calls for step in call.steps]
