"""One drafter for all requests of a server: they join, leave, pause and come back; its tables serve them all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from treespec.drafters import Merge, SuffixLookup, SuffixStore, TokenRecycling, WarmStart
from treespec.drafters.base import single_nodes
from treespec.drafters.registry import maker
from treespec.errors import ConfigError
from treespec.policies import Control
from treespec.protocols import Scores, ServingDrafter, Session, VerifiedStep
from treespec.sampling import NoProcessors
from treespec.tree import TreeBatch, Verdict
from treespec.tree.highest import highest
from treespec.tree.history import History
from treespec.tree.transfer import download
from treespec.vllm.drafts import depth_first
from treespec.vllm.options import MERGE, READERS, Options
from treespec.vllm.pages import OnPages

if TYPE_CHECKING:
    from treespec.vllm.readers import Reader

EAGER_STEPS = 8
"""Steps without a draft from which drafters learn all the same, before they rest until the next draft."""
COLD_DRAFTS = 3
"""The first drafts of an engine load a device's kernels, which may take a hundred times as long as a draft."""


@dataclass(frozen=True)
class ServedRow:
    """One request's outcome in a step: the row of its tree there, its verdict, and the tokens that it emitted.

    `text` reads the request's whole text, what was emitted included, for requests that are new or were away; it has
    `length` tokens.
    """

    request: str
    tree_row: int
    verdict: Verdict
    emitted: list[int]
    text: Callable[[], Sequence[int]]
    length: int
    room: int
    """How many more tokens it may emit."""


@dataclass(frozen=True)
class FlatStep(VerifiedStep):
    """A step whose logits are one table, float [M, V], in which these are the flat rows of its trees' nodes."""

    nodes: Sequence[int] = ()

    def top_tokens(self, k: int) -> Int[Tensor, "M k"]:
        """See `VerifiedStep`."""
        return download(highest(self.scores.logits, k))[0][self.nodes]


class Drafting:
    """Proposes trees for the requests of every step and lets the drafter learn what became of them.

    The drafter's rows are the requests of the last step; one that was not in it joins again with its whole text.
    """

    def __init__(
        self,
        options: Options,
        vocab_size: int,
        seed: int = 0,
        reader: Reader | None = None,
        is_on_host: bool = True,
        is_chain_only: bool = False,
    ) -> None:
        """`reader`: a head has its pages; `is_on_host`, `is_chain_only`: see `Session`."""
        self.drafter, self._reader, policy = make_drafter(options, reader), reader, options.policy
        is_own = options.drafter not in (MERGE, "recycling", "suffix", *READERS)
        self.control = policy if isinstance(policy, Control) else None
        self.requests: list[str] = []
        self._num_plain, self._num_cold, self._is_own = 0, COLD_DRAFTS, is_own
        nobody = torch.zeros(0, 1, dtype=torch.int64, device="cpu")
        self._history = History(nobody, nobody.bool())
        session = Session(
            history=self._history,
            is_sampling=is_own,  # Trees of drawn children could not be cut to sizes.
            processors=NoProcessors(),  # Requests have different ones, which only the target applies.
            generator=torch.Generator("cpu").manual_seed(seed),  # Shares nothing with verification.
            device=torch.device("cpu"),
            vocab_size=vocab_size,
            row_ids=[],
            policy=policy,
            is_chain_only=is_chain_only,
            is_on_host=is_on_host,
            is_flat=True,
        )
        if self.control is not None:
            self.control.begin(session, self.drafter, 0.0 if reader is None else reader.share)
        self.drafter.start(session)

    def update(
        self, rows: Sequence[ServedRow], trees: TreeBatch, logits: Float[Tensor, "M V"], starts: Sequence[int]
    ) -> None:
        """Learn a step: its trees, one per request of it, and the target's logits, of request i from `starts[i]` on.

        What these requests have written in steps that were passed over is learned now.
        """
        self._num_plain = self._num_plain + 1 if trees.max_nodes == 1 else 0
        known = {request: row for row, request in enumerate(self.requests)}
        kept = [self._with_missed(row, known[row.request]) for row in rows if row.request in known]
        joined = [row for row in rows if row.request not in known]
        numbers = [known[row.request] for row in kept]
        if numbers != list(range(len(known))):
            self._history.select_rows(numbers)
            self.drafter.select_rows(numbers)
        for number, row in enumerate(kept):
            self._history.append(number, row.emitted)
        if kept:
            self.drafter.update(flat_step(kept, trees, logits, starts))
        if joined:
            self._history.add_rows([row.text() for row in joined])  # After `update`: these have this step's tokens.
            self.drafter.add_rows(len(joined))
        self.requests = [row.request for row in (*kept, *joined)]

    def _with_missed(self, row: ServedRow, number: int) -> ServedRow:
        """A row of the drafter with all that it has emitted since the last `update`."""
        known = self._history.lengths[number]
        return row if known + len(row.emitted) == row.length else replace(row, emitted=list(row.text())[known:])

    @property
    def is_resting(self) -> bool:
        """Whether steps without drafts, as the last `EAGER_STEPS`, are passed over; the next draft reads the texts."""
        return self._num_plain >= EAGER_STEPS and not self._is_own  # Drafters of the user's own see every step.

    def rests(self, num_rows: int) -> bool:
        """Whether this step, without drafts, is passed over and the next one drafts nothing, whatever the requests."""
        return self.is_resting and self.control is not None and self.control.rests(num_rows)

    def report(self, step: VerifiedStep, draft_ms: float, other_ms: float | None) -> None:
        """Let the control learn a step and its times, as `StepControl.learn`; `draft_ms` is 0 where none was made.

        Steps of the first drafts are left out: by their times drafts would seem not to pay, and rest for long.
        """
        if draft_ms > 0 and self._num_cold > 0:
            self._num_cold -= 1
        elif self.control is not None:
            self.control.learn(step, draft_ms, other_ms)

    def num_unread(self, rows: Sequence[ServedRow]) -> int:
        """Tokens of these requests that have to be read before a draft, after a step that was not learned yet."""
        if self._reader is None:
            return 0
        numbers = {request: number for number, request in enumerate(self.requests)}
        return sum(self._reader.num_unread(row.length, numbers.get(row.request)) for row in rows)

    def propose(self, rows: Sequence[ServedRow], tables: np.ndarray | None = None) -> TreeBatch:
        """Trees in depth-first order for the requests of the last `update`, in the order of `rows`.

        No tree is deeper than its request has room for: a path of depth d emits d + 1 tokens.

        Args:
            tables: the batch's block tables, by `tree_row`; a head needs them.
        """
        self._num_plain = 0  # The next step says what became of the draft, verified or not.
        rooms = [row.room - 1 for row in rows]
        if max(rooms) < 1:
            return single_nodes(torch.tensor([row.emitted[-1] for row in rows], device="cpu"))
        number = {request: row for row, request in enumerate(self.requests)}
        if isinstance(self._reader, OnPages) and tables is not None:
            numbers = {row.request: row.tree_row for row in rows}
            self._reader.pages.tables = tables[[numbers[request] for request in self.requests]]
        trees = self.drafter.propose(max(rooms)).select_rows([number[row.request] for row in rows])
        if trees.max_nodes > 1 + min(rooms):
            trees = trees.limit_depth(rooms)
        return depth_first(trees)


def make_drafter(options: Options, reader: Reader | None = None) -> ServingDrafter:
    """The drafter of these options, with the tables of the warm start, and with this head or draft model.

    Raises:
        ConfigError: a class that cannot be imported, or one whose objects are no `ServingDrafter`.
        CheckpointError: the warm start cannot be read.
    """
    name = options.warm_start
    load = WarmStart.load if name and name.endswith(".safetensors") else WarmStart.shipped
    warm = load(name) if name is not None else None
    recycling = TokenRecycling() if warm is None else warm.recycling()
    suffix = SuffixLookup(store=SuffixStore()) if warm is None else warm.suffix()
    made: dict[str, Any] = {"recycling": recycling, "suffix": suffix, **dict.fromkeys(READERS, reader)}
    made[MERGE] = Merge([*([reader] if reader else []), recycling, suffix])
    if options.drafter in made:
        return made[options.drafter]
    drafter = maker(options.drafter)()
    if not isinstance(drafter, ServingDrafter):
        methods = "start, propose, update, select_rows and add_rows"
        raise ConfigError(f"{options.drafter} cannot serve requests that come and go: it needs {methods}")
    return drafter


def flat_step(
    rows: Sequence[ServedRow], trees: TreeBatch, logits: Float[Tensor, "M V"], starts: Sequence[int]
) -> FlatStep:
    """These rows of a step; see `Drafting.update`."""
    chosen = trees.select_rows([row.tree_row for row in rows])
    nodes = [
        starts[row.tree_row] + node for row, n in zip(rows, chosen.num_nodes.tolist(), strict=True) for node in range(n)
    ]
    return FlatStep(chosen, [row.verdict for row in rows], Scores(logits), [row.emitted for row in rows], nodes)
