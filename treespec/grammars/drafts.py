"""Drafts under constraints: what is forbidden is not proposed, and what leaves no choice needs no drafter."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from treespec.grammars.forced_text import ForcedText
from treespec.policies.wrapping import is_chain as has_chains_only
from treespec.protocols import Capability, Drafter, Session, VerifiedStep
from treespec.tree import POINT_MASS, ROOT_PARENT, HostTree, TokenTree, TreeBatch, pad_rows

FIRST_GAIN, MEMORY = 3.0, 0.1
"""Tokens that a step with the drafter is expected to bring at first, and the weight of each new step's."""


class GrammarDrafts:
    """A `Drafter` around another one; attributes beyond those of a drafter are the other's.

    Text that must follow, see `ForcedText`, is added to the other drafter's trees of selected children, also below
    their nodes. Where a chain of such text is expected to bring every row at least as many tokens as steps with the
    drafter have brought lately, the text is the draft, and a drafter that reads weights is not asked. A row's tree of
    sampled children is replaced by its chain by the same comparison.

    What is done with sampled children never depends on the tokens that were drawn, so the output stays exact: they are
    neither dropped one by one (built-in drafters draw them under the constraints) nor joined by others.
    """

    def __init__(self, drafter: Drafter, forced: ForcedText) -> None:
        self._drafter = drafter
        self.wrapped = drafter  # Statistics of `tree="auto"` belong to it: a new wrapper is made for every call.
        self._forced = forced

    def __getattr__(self, name: str) -> Any:
        return getattr(self._drafter, name)

    def start(self, session: Session) -> None:
        self._session = session
        self._is_asked = False
        self._has_values = not session.is_sampling
        """Whether trees get values. A control reads selected children with values as all that a drafter proposes."""
        self._gain = FIRST_GAIN
        self._num_prompt = session.history.row(0).shape[0]
        self._drafter.start(session)

    def propose(self, max_depth: int) -> TreeBatch:
        texts = self._texts()
        roots = [HostTree([root], [ROOT_PARENT], [1.0]) for root in self._session.history.last_tokens.tolist()]
        chains = self._with_forced_text(roots, texts, max_depth, is_chain=True)
        are_enough = [sum(chain.values) >= self._gain for chain in chains]
        self._is_asked = not all(are_enough) or getattr(self._drafter, "num_weights", 0) == 0
        if not self._is_asked:
            return self._batch(self._with_forced_text(roots, texts, max_depth))
        trees = self._drafter.propose(max_depth)
        self._has_values = trees.draft_probs is None and trees.values is not None
        if trees.draft_probs is None:
            return self._batch(self._with_forced_text(trees.host_trees(), texts, max_depth))
        rows = list(zip(trees.trees, self._session.row_ids, texts, strict=True))
        keep = [self._are_allowed(*row, trees.max_nodes) for row in rows]
        trees = trees if all(map(all, keep)) else trees.keep_nodes(torch.tensor(keep, device="cpu"))
        runs = [chain.tokens[1:] if is_enough else [] for chain, is_enough in zip(chains, are_enough, strict=True)]
        return _with_chains(trees, runs)

    def update(self, step: VerifiedStep) -> None:
        texts = self._texts()  # The step's tokens are there already.
        for row, text, emitted in zip(self._session.row_ids, texts, step.emitted, strict=True):
            self._forced.follow(row, text)
            self._forced.learn(row, text[: len(text) - len(emitted)], emitted)
        if self._is_asked:
            gain = sum(map(len, step.emitted)) / len(step.emitted)
            self._gain += MEMORY * (gain - self._gain)
        self._is_asked = False
        self._drafter.update(step)

    def select_rows(self, rows: Sequence[int]) -> None:
        self._drafter.select_rows(rows)

    def _batch(self, trees: Sequence[HostTree]) -> TreeBatch:
        batch = TreeBatch.from_host_trees(trees)
        return batch if self._has_values else replace(batch, values=None)

    def _texts(self) -> list[tuple[int, ...]]:
        """The emitted tokens of every row."""
        history = self._session.history
        return [tuple(history.row(b)[self._num_prompt :].tolist()) for b in range(history.num_rows)]

    def _with_forced_text(
        self, trees: Sequence[HostTree], texts: Sequence[tuple[int, ...]], max_depth: int, is_chain: bool = False
    ) -> list[HostTree]:
        """The trees with text that must follow, of as many nodes as the policy allows or as they have."""
        policy, target = self._session.policy, self._session.target
        is_chain = is_chain or has_chains_only(policy) or getattr(target, "capability", None) == Capability.CHAIN
        rows = zip(trees, self._session.row_ids, texts, strict=True)
        sizes = [max(len(tree.tokens), max_depth + 1 if policy is None else policy.max_nodes) for tree in trees]
        return [
            self._forced.add_to(*row, num_nodes=size, max_depth=max_depth, is_chain=is_chain)
            for row, size in zip(rows, sizes, strict=True)
        ]

    def _are_allowed(self, tree: TokenTree, row: int, text: tuple[int, ...], width: int) -> list[bool]:
        """The mask of nodes that are kept; False for padding up to `width`."""
        keep = [True]
        for node in range(1, tree.num_nodes):
            parent = tree.parent_list[node]
            is_drawn = tree.draft_index_list[node] != POINT_MASS
            before = (*text, *tree.token_paths[parent])
            keep.append(keep[parent] and (is_drawn or self._forced.allows(row, before, tree.token_list[node])))
        return keep + [False] * (width - tree.num_nodes)


def _with_chains(trees: TreeBatch, runs: Sequence[Sequence[int]]) -> TreeBatch:
    """The batch with the trees of rows that have a run replaced by it, a chain of selected tokens."""
    if not any(runs):
        return trees
    rows = list(trees.trees)
    values = [] if trees.values is None else trees.values.tolist()
    for row, run in enumerate(runs):
        if run:
            tokens = torch.tensor([rows[row].token(0), *run], device="cpu")
            rows[row] = TokenTree(tokens, torch.arange(ROOT_PARENT, len(run), device="cpu"))
            if values:
                values[row] = [1.0] * len(tokens)
    batch = TreeBatch.from_trees(rows)
    if not values:
        return batch
    padded = torch.tensor(pad_rows(values, 1.0), dtype=torch.float32, device="cpu")
    return replace(batch, values=padded[:, : batch.max_nodes])
