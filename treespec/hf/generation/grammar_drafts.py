"""Drafts under constraints: what is forbidden is not proposed, and what leaves no choice needs no drafter."""

from collections.abc import Container, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from treespec.hf.generation.forced_text import Spellings, forced_token, spellings_of
from treespec.hf.generation.grammar import Constraint, GrammarProcessor
from treespec.hf.generation.prefix_function import PrefixProcessor
from treespec.protocols import Drafter, Session, VerifiedStep
from treespec.tree import PADDING_PARENT, POINT_MASS, ROOT_PARENT, TokenTree, TreeBatch

FIRST_GAIN, MEMORY = 3.0, 0.1
"""Tokens that a step with the drafter is expected to bring at first, and the weight of each new step's."""


class GrammarDrafts:
    """A `Drafter` around another one; attributes beyond those of a drafter are the other's.

    A forced run are the tokens that must follow, or with `spellings` those that spell a text that must follow, at most
    as many as the call's policy has nodes. Where it is at least as long for every row as what the other drafter's trees
    have brought lately, these chains are the drafts and the other drafter is not asked. Elsewhere a row's run joins its
    tree of selected children, or replaces a tree of sampled ones by the same comparison.

    What is done with sampled children never depends on the tokens that were drawn, so the output stays exact: they are
    neither dropped one by one (built-in drafters draw them under the constraints) nor joined by others.
    """

    def __init__(
        self, drafter: Drafter, constraints: Sequence[Constraint], spellings: Spellings | None, ends: Container[int]
    ) -> None:
        """`ends` are the tokens that end a text: no run goes beyond one."""
        self._drafter = drafter
        self.wrapped = drafter  # What `tree="auto"` learns belongs to it: a new wrapper is made for every call.
        self._constraints = constraints
        self._spellings = spellings
        self._ends = ends

    def __getattr__(self, name: str) -> Any:
        return getattr(self._drafter, name)

    def start(self, session: Session) -> None:
        self._session = session
        self._is_asked = False
        self._gain = FIRST_GAIN
        self._num_prompt = session.history.row(0).shape[0]
        self._drafter.start(session)

    def propose(self, max_depth: int) -> TreeBatch:
        history = self._session.history
        policy = self._session.policy
        texts = [tuple(history.row(b)[self._num_prompt :].tolist()) for b in range(history.num_rows)]
        longest = min(max_depth, max_depth if policy is None else policy.max_nodes - 1)
        runs = [self._forced(row, text, longest) for row, text in zip(self._session.row_ids, texts, strict=True)]
        longer = [run if len(run) + 1 >= self._gain else [] for run in runs]
        self._is_asked = not all(longer)
        if not self._is_asked:
            return _chains(history.last_tokens.tolist(), runs)
        trees = self._drafter.propose(max_depth)
        rows = list(zip(trees.trees, self._session.row_ids, texts, strict=True))
        keep = [self._are_allowed(*row, trees.max_nodes) for row in rows]
        trees = trees if all(map(all, keep)) else trees.keep_nodes(torch.tensor(keep))
        if trees.draft_probs is not None:
            return _with_chains(trees, longer)
        return _joined(trees, runs, longest + 1)

    def update(self, step: VerifiedStep) -> None:
        if self._is_asked:
            gain = sum(map(len, step.emitted)) / len(step.emitted)
            self._gain += MEMORY * (gain - self._gain)
        self._drafter.update(step)

    def select_rows(self, rows: Sequence[int]) -> None:
        self._drafter.select_rows(rows)

    def _allowed(self, row: int, tokens: tuple[int, ...]) -> Tensor | None:
        """What all constraints allow next, bool of any length; None where one of them forbids one of the tokens."""
        found = [constraint.allowed(row, tokens) for constraint in self._constraints]
        masks = [mask for mask in found if mask is not None]
        if len(masks) < len(found):
            return None
        size = min(map(len, masks))
        return torch.stack([mask[:size] for mask in masks]).all(0) if len(masks) > 1 else masks[0]

    def _allows(self, row: int, tokens: tuple[int, ...], token: int) -> bool:
        allowed = self._allowed(row, tokens)
        return allowed is not None and token < len(allowed) and bool(allowed[token])

    def _forced(self, row: int, text: tuple[int, ...], max_length: int) -> list[int]:
        """The forced run after a text."""
        run: list[int] = []
        while len(run) < max_length and (allowed := self._allowed(row, (*text, *run))) is not None:
            token = forced_token(allowed, self._spellings)
            if token is not None:
                run.append(token)
            if token is None or token in self._ends:
                break
        return run

    def _are_allowed(self, tree: TokenTree, row: int, text: tuple[int, ...], width: int) -> list[bool]:
        """Which nodes stay; False for padding up to `width`."""
        keep = [True]
        for node in range(1, tree.num_nodes):
            parent = tree.parent_list[node]
            is_drawn = tree.draft_index_list[node] != POINT_MASS
            before = (*text, *tree.token_paths[parent])
            keep.append(keep[parent] and (is_drawn or self._allows(row, before, tree.token_list[node])))
        return keep + [False] * (width - tree.num_nodes)


def _chains(roots: Sequence[int], runs: Sequence[Sequence[int]]) -> TreeBatch:
    chains = [torch.tensor([root, *run]) for root, run in zip(roots, runs, strict=True)]
    return TreeBatch.from_trees([TokenTree.chain(chain) for chain in chains])


def _joined(trees: TreeBatch, runs: Sequence[Sequence[int]], num_nodes: int) -> TreeBatch:
    """Trees of selected children with a row's run as one of the paths, of at most `num_nodes` or as many as before."""
    is_new = [_descend(tree, run)[1] < len(run) for tree, run in zip(trees.trees, runs, strict=True)]
    if not any(is_new) or trees.is_chain:  # A chain stays one, for policies, models and rules of chains.
        return _with_chains(trees, [run if new else [] for run, new in zip(runs, is_new, strict=True)])
    joined = [_join(tree, run, max(num_nodes, trees.max_nodes)) for tree, run in zip(trees.trees, runs, strict=True)]
    return TreeBatch.from_trees(joined)


def _join(tree: TokenTree, run: Sequence[int], num_nodes: int) -> TokenTree:
    """Later nodes give way to the run."""
    path, depth = _descend(tree, run)
    room = num_nodes - (len(run) - depth)
    kept = [node for node in range(tree.num_nodes) if node in path or node < room]
    while len(kept) > room and (extra := [node for node in kept if node not in path]):
        kept.remove(extra[-1])
    number = {node: new for new, node in enumerate(kept)}
    tokens = [tree.token(node) for node in kept] + list(run[depth:])
    parents = [number.get(tree.parent_list[node], ROOT_PARENT) for node in kept]
    for _ in run[depth:]:
        parents.append(number[path[-1]] if len(parents) == len(kept) else len(parents) - 1)
    return TokenTree(torch.tensor(tokens), torch.tensor(parents))


def _descend(tree: TokenTree, run: Sequence[int]) -> tuple[list[int], int]:
    """The path, root included, that follows a run as far as the tree does, and its depth."""
    path = [0]
    for token in run:
        child = next((child for child in tree.children(path[-1]) if tree.token(child) == token), None)
        if child is None:
            break
        path.append(child)
    return path, len(path) - 1


def _with_chains(trees: TreeBatch, runs: Sequence[Sequence[int]]) -> TreeBatch:
    """The batch with the trees of rows that have a run replaced by it, a chain of selected tokens."""
    if not any(runs):
        return trees
    width = max(trees.max_nodes, *(1 + len(run) for run in runs))

    def filled(array: Tensor | None, padding: Any, of_run: Any) -> Tensor | None:
        if array is None:
            return None
        array = torch.nn.functional.pad(array, (0, width - array.shape[1]), value=padding).clone()
        for row, run in enumerate(runs):
            if run:
                array[row, 1:] = padding
                array[row, 1 : 1 + len(run)] = torch.tensor(of_run(run))
        return array

    return replace(
        trees,
        tokens=filled(trees.tokens, 0, list),
        parents=filled(trees.parents, PADDING_PARENT, lambda run: range(len(run))),
        draft_index=filled(trees.draft_index, POINT_MASS, lambda run: [POINT_MASS] * len(run)),
        is_without_replacement=filled(trees.is_without_replacement, False, lambda run: [False] * len(run)),
        values=filled(trees.values, 1.0, lambda run: [1.0] * len(run)),
    )


def under_constraints(
    drafter: Drafter, processors: Sequence[Any], tokenizer: Any, ends: Container[int] = ()
) -> Drafter:
    """The drafter under all constraints among the call's processors, or as it is."""
    constraints = [processor for processor in processors if isinstance(processor, (GrammarProcessor, PrefixProcessor))]
    if not constraints:
        return drafter
    tokenizer = getattr(tokenizer, "tokenizer", tokenizer)  # A processor of images has one.
    has_spellings = isinstance(tokenizer, PreTrainedTokenizerBase)
    return GrammarDrafts(drafter, constraints, spellings_of(tokenizer) if has_spellings else None, ends)
