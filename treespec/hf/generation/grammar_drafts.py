"""Drafts under a grammar: what it forbids is not proposed, and what it leaves no choice about needs no drafter."""

from collections.abc import Sequence
from typing import Any

import torch

from treespec.hf.generation.grammar import GrammarProcessor
from treespec.protocols import Drafter, Session, VerifiedStep
from treespec.tree import POINT_MASS, TokenTree, TreeBatch


class GrammarDrafts:
    """A `Drafter` around another one; attributes beyond those of a drafter are the other's.

    Where every row has only one allowed text of two tokens or more ahead, that is the draft and the other drafter is
    not asked. Only selected children are dropped: sampled ones were drawn under the grammar already, or must stay for
    exactness.
    """

    def __init__(self, drafter: Drafter, grammar: GrammarProcessor) -> None:
        self._drafter = drafter
        self._grammar = grammar
        self.wrapped = drafter  # What `tree="auto"` learns belongs to it: a new wrapper is made for every call.

    def __getattr__(self, name: str) -> Any:
        return getattr(self._drafter, name)

    def start(self, session: Session) -> None:
        self._session = session
        self._num_prompt = session.history.row(0).shape[0]
        self._drafter.start(session)

    def propose(self, max_depth: int) -> TreeBatch:
        history = self._session.history
        policy = self._session.policy
        texts = [history.row(b)[self._num_prompt :].tolist() for b in range(history.num_rows)]
        longest = min(max_depth, max_depth if policy is None else policy.max_nodes - 1)
        runs = [self._grammar.forced(text, longest) for text in texts]
        if min(map(len, runs)) > 1:
            roots = history.last_tokens.tolist()
            chains = [torch.tensor([root, *run]) for root, run in zip(roots, runs, strict=True)]
            return TreeBatch.from_trees([TokenTree.chain(chain) for chain in chains])
        trees = self._drafter.propose(max_depth)
        keep = [self._allowed(tree, text, trees.max_nodes) for tree, text in zip(trees.trees, texts, strict=True)]
        return trees if all(map(all, keep)) else trees.keep_nodes(torch.tensor(keep))

    def update(self, step: VerifiedStep) -> None:
        self._drafter.update(step)

    def select_rows(self, rows: Sequence[int]) -> None:
        self._drafter.select_rows(rows)

    def _allowed(self, tree: TokenTree, text: list[int], width: int) -> list[bool]:
        """Which nodes stay; False for padding up to `width`."""
        keep = [True]
        for node in range(1, tree.num_nodes):
            parent = tree.parent_list[node]
            before = (*text, *tree.token_paths[parent])
            is_drawn = tree.draft_index_list[node] != POINT_MASS
            keep.append(keep[parent] and (is_drawn or self._grammar.allows(before, tree.token_list[node])))
        return keep + [False] * (width - tree.num_nodes)


def under_grammar(drafter: Drafter, processors: Sequence[Any]) -> Drafter:
    """The drafter under the first grammar among the call's processors, or as it is."""
    grammar = next((processor for processor in processors if isinstance(processor, GrammarProcessor)), None)
    return drafter if grammar is None else GrammarDrafts(drafter, grammar)
