"""Replay: a drafter and a policy along a known text, with every pass of the models done once for all of them.

When all children are selected, verification emits the target's own tokens whatever was drafted, and keeps the longest
drafted path of those tokens. So the engine's own loop along a text of the target, greedy or sampled, accepts just
what it would have accepted when the text was written: `TextWalk` is that verification. The models' logits come from
`RecordedScorer`, which runs a model only for nodes that it has not seen below the same text before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from benchmarks.common.recorded import Text
from treespec.engine.loop import Run, speculate
from treespec.engine.stats import SpeculationStats
from treespec.hf import TreeScorer
from treespec.hf.cache.caches import twin_cache
from treespec.hf.introspect import CACHE_NAME
from treespec.protocols import (
    Capability,
    CausalScorer,
    Drafter,
    NodeProbs,
    RandomSource,
    Scores,
    TreePolicy,
    VerifiableTree,
)
from treespec.tree import ROOT_PARENT, TreeBatch, Verdict

MARGIN = 32
"""Texts go on this many tokens beyond the last one that counts, so that no tree there is cut short."""

MAX_SCORERS = 16
"""More caches of one text are not kept: each may hold as many keys as the text, and a step needs one of them."""


class Node:
    """A token in its context: `index` counts the text's tokens up to the last one shared with the text."""

    __slots__ = ("children", "index", "is_text", "kept", "parent", "token")

    def __init__(self, token: int, parent: Node | None, index: int, is_text: bool) -> None:
        self.token, self.parent, self.index, self.is_text = token, parent, index, is_text
        self.children: dict[int, Node] = {}
        self.kept: tuple[Tensor, Tensor | None] | None = None


class BranchScorer(NamedTuple):
    """A scorer whose cache ends at one token of the text, and the pending numbers of the nodes below that token."""

    scorer: TreeScorer
    numbers: dict[Node, int]


class RecordedScorer:
    """A `CausalScorer` of one row that follows a known text and computes the logits of any node once.

    Args:
        model: on the CPU, its attention able to run trees.
        text: the text that will be committed, prompt included.
        num_kept: the highest logits kept of a node off the text; the others come back as -inf. None keeps all.

    Attributes:
        is_text_enough: nodes off the text get logits of zero and cost no pass. For trees whose shape depends on no
            probability this changes nothing that is accepted: below such a node nothing is.
        num_scored: nodes off the text that were computed.
    """

    capability = Capability.TREE
    hidden_layers: tuple[int, ...] = ()
    max_positions: int | None = None

    @torch.no_grad()
    def __init__(self, model: PreTrainedModel, text: Text, num_kept: int | None = None) -> None:
        self._model, self._num_kept = model, num_kept
        self.device, self.is_text_enough, self.num_scored = torch.device("cpu"), False, 0
        self._ids, self._cache = text.ids, DynamicCache()
        called: Any = model
        output = called(
            text.ids[None], **{CACHE_NAME: self._cache}, use_cache=True, logits_to_keep=len(text.ids) - text.start + 1
        )
        self.vocab_size: int = output.logits.shape[-1]
        self._zeros = torch.zeros(self.vocab_size)
        self._text = self._follow(text, output.logits[0])
        self._scorers: dict[int, BranchScorer] = {}
        self._committed, self._pending = self._text[0], list[Node | None]()

    def _follow(self, text: Text, logits: Tensor) -> list[Node]:
        """The text's own nodes; logits [L - P + 1, V] are those from the prompt's last token on."""
        nodes: list[Node] = []
        for index, token in enumerate(text.ids.tolist()):
            node = Node(token, nodes[-1] if nodes else None, index, is_text=True)
            if index >= text.start - 1:
                node.kept = logits[index - text.start + 1], None
            if nodes:
                nodes[-1].children[token] = node
            nodes.append(node)
        return nodes

    def prefill(self, ids: Tensor, mask: Tensor) -> Scores:
        """See `CausalScorer`; ids int64 [1, P] must begin the text."""
        length = ids.shape[1]
        assert length > 0
        assert torch.equal(ids[0], self._ids[:length]), "a recorded scorer follows its own text"
        self._committed, self._pending = self._text[length - 1], []
        return Scores(self._logits(self._committed)[None, None])

    @torch.no_grad()
    def extend(self, tokens: Tensor, parents: Tensor) -> Scores:
        """See `CausalScorer`; tokens, parents int64 [1, F]."""
        fresh: list[Node | None] = []
        for token, parent in zip(tokens[0].tolist(), parents[0].tolist(), strict=True):
            above = self._committed if parent == ROOT_PARENT else None if parent < 0 else self._pending[parent]
            node = None if above is None else self._child(above, token)
            fresh.append(node)
            self._pending.append(node)
        if not self.is_text_enough:
            self._compute([node for node in fresh if node is not None and node.kept is None])
        logits = torch.stack([self._logits(node) for node in fresh])
        return Scores(logits[None])

    def commit(self, paths: Sequence[Sequence[int]]) -> None:
        """See `CausalScorer`; what is committed is text."""
        if paths[0]:
            node = self._pending[paths[0][-1]]
            assert node is not None
            assert node.is_text, "only the recorded text can be committed"
            self._committed = node
        self._pending = []

    def select_rows(self, rows: Sequence[int]) -> None:
        """There is one row."""

    def _child(self, parent: Node, token: int) -> Node:
        if token not in parent.children:
            parent.children[token] = Node(token, parent, parent.index, is_text=False)
        return parent.children[token]

    def _compute(self, missing: list[Node]) -> None:
        """Score nodes of this step, with those of their ancestors that have no number yet, in one pass."""
        if not missing:
            return
        branch_scorer = self._scorer_at(self._committed.index)
        batch: list[Node] = []
        for node in missing:
            branch: list[Node] = []
            above: Node | None = node
            while above is not None and above is not self._committed and above not in branch_scorer.numbers:
                branch.append(above)
                above = above.parent
            for unknown in reversed(branch):
                branch_scorer.numbers[unknown] = len(branch_scorer.numbers)
                batch.append(unknown)
        tokens = torch.tensor([[node.token for node in batch]])
        above_of = [
            branch_scorer.numbers.get(node.parent, ROOT_PARENT) if node.parent else ROOT_PARENT for node in batch
        ]
        logits = branch_scorer.scorer.extend(tokens, torch.tensor([above_of])).logits
        self.num_scored += len(missing)
        for column, node in enumerate(batch):
            if node.kept is None:
                node.kept = self._keep(logits[0, column])

    def _keep(self, logits: Tensor) -> tuple[Tensor, Tensor | None]:
        """A node's logits [V] as they are kept: values, and their tokens (None: the whole vocabulary)."""
        if self._num_kept is None:
            return logits.clone(), None
        values, tokens = logits.topk(self._num_kept)
        return values, tokens

    def _logits(self, node: Node | None) -> Tensor:
        if node is None or node.kept is None:
            return self._zeros
        values, tokens = node.kept
        return values if tokens is None else torch.full((self.vocab_size,), -torch.inf).scatter(0, tokens, values)

    def _scorer_at(self, index: int) -> BranchScorer:
        """The scorer whose cache ends with the text's token `index`."""
        if index not in self._scorers:
            cache: Any = twin_cache(self._cache)
            for layer in cache.layers:
                layer.keys, layer.values = layer.keys[:, :, : index + 1], layer.values[:, :, : index + 1]
            scorer = TreeScorer(self._model, cache=cache)
            ids = self._ids[None, : index + 1]
            scorer.prefill(ids, torch.ones_like(ids, dtype=torch.bool))
            # `_compute` gives the nodes of a dropped scorer new numbers when they are needed again.
            while len(self._scorers) >= MAX_SCORERS:
                del self._scorers[next(iter(self._scorers))]
            self._scorers[index] = BranchScorer(scorer, {})
        return self._scorers[index]


@dataclass
class TextWalk:
    """Verification against a known text: descends while a child has the text's next token, then emits that token."""

    text: Sequence[int]
    position: int
    """The position of the next root in the text."""

    name = "text_walk"
    is_lossless = False  # Its output is given, not drawn.

    def reason_against(self, trees: TreeBatch) -> None:
        """None: it verifies every tree."""

    def verify(self, tree: VerifiableTree, target_probs: NodeProbs, rng: RandomSource) -> Verdict:
        path = [0]
        while True:
            self.position += 1
            token = self.text[self.position]
            child = next((c for c in tree.children(path[-1]) if tree.token(c) == token), None)
            if child is None:
                return Verdict(tuple(path), token, is_bonus=not tree.children(path[-1]))
            path.append(child)


class TextStopping:
    """Stops before the first step that would start beyond `end`; trees may reach to the text's last token."""

    def __init__(self, text: Text, end: int) -> None:
        self._length, self._end = len(text.ids), end

    def num_kept(self, row: int, ids: Tensor, new_tokens: Sequence[int]) -> int | None:
        return len(new_tokens) if len(ids) >= self._end else None

    def max_new(self, row: int, length: int, num_padding: int) -> int:
        return self._length - length


def replay(
    target: CausalScorer,
    drafter: Drafter,
    policy: TreePolicy,
    text: Text,
    num_new: int,
    is_sampling: bool = False,
    seed: int = 0,
) -> SpeculationStats:
    """Run the engine along a text and count what is accepted in the steps that start within its first `num_new` tokens.

    Args:
        target: a scorer of this very text.
        drafter: a fresh one; its trees must be of selected children.
        is_sampling: passed on to the drafter.
    """
    end = min(text.start + num_new, len(text.ids) - 1)
    run = Run(
        target,
        drafter,
        prompt_ids=text.ids[None, : text.start],
        prompt_mask=torch.ones(1, text.start, dtype=torch.bool),
        stopping=TextStopping(text, end),
        policy=policy,
        verification=TextWalk(text.ids.tolist(), text.start - 1),
        is_sampling=is_sampling,
        seed=seed,
    )
    return speculate(run).stats
