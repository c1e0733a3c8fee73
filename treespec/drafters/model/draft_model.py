"""A draft model: any causal scorer proposes token trees.

A level of the tree is one tree-masked pass over the model's own cache, and so is catching up after acceptance.
"""

import warnings
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from treespec.checks import check_count
from treespec.drafters.base import SessionSource, depth_room, path_probs, policy_of_call, single_nodes
from treespec.drafters.model.pending_nodes import PendingNodes
from treespec.drafters.model.token_map import left_padded
from treespec.drafters.model.vocabulary import SameVocabulary, Vocabulary
from treespec.errors import ContextFullError, TreespecWarning
from treespec.policies.wrapping import as_chain, is_chain
from treespec.protocols import Capability, CausalScorer, Frontier, Proposal, Session, TreePolicy, VerifiedStep
from treespec.tree import TreeBatch


class DraftModel(SessionSource):
    """Drafts with a causal language model; see `Drafter` for its methods.

    The distribution it stores is the one it samples from: softmax in float32 of its logits after the caller's
    processors, applied along every node's path. Where the caller decodes greedily the same distribution is an estimate.

    Args:
        scorer: the draft model, e.g. `hf.TreeScorer`.
        max_length: the longest text that the draft model reads, in tokens; None: as long as it has positions. When a
            row has no room left, or the scorer raises `ContextFullError`, drafting stops and the target decodes alone.
        vocabulary: how the draft model's tokens relate to the target's; None: they are the same.

    Raises `ConfigError`: `max_length` is not a positive int.
    """

    def __init__(
        self, scorer: CausalScorer, max_length: int | None = None, vocabulary: Vocabulary | None = None
    ) -> None:
        self._scorer = scorer
        self._vocabulary: Vocabulary = vocabulary or SameVocabulary()
        self._max_length = scorer.max_positions if max_length is None else check_count("max_length", max_length)
        self._has_warned = False

    @property
    def num_weights(self) -> int:
        """The number of weights that a draft pass reads, 0 if the scorer does not say."""
        return getattr(self._scorer, "num_weights", 0)

    def start(self, session: Session) -> None:
        """Read the prompt except for its last token, which is the first root.

        Raises `VocabularyMismatchError`: the vocabularies differ, and no `vocabulary` says how they relate.
        """
        self._session = session
        self._text = self._vocabulary.read(session, self._scorer.vocab_size)
        self._servable(policy_of_call(session))
        self._pending: PendingNodes | None = None
        self._root_logits: list[Tensor | None] = [None] * session.history.num_rows
        self._num_cached = [0] * session.history.num_rows
        self._is_full = depth_room(self._text.history, self._max_length) < 1
        try:
            if not self._is_full:
                self._prefill()
        except ContextFullError:
            self._is_full = True

    def propose(self, max_depth: int) -> TreeBatch:
        """Trees by the policy; roots alone once the context is full. See `Drafter`."""
        depth = 0 if self._is_full else min(max_depth, depth_room(self._text.history, self._max_length))
        try:
            if depth > 0:
                return self._servable(self._policy).grow(self, depth)
        except ContextFullError:
            self._is_full = True
        return single_nodes(self.root_tokens)

    def update(self, step: VerifiedStep) -> None:
        """Keep the cache entries of emitted tokens that were already computed, whichever drafter proposed them."""
        pending, self._pending = self._pending, None
        emitted = self._text.append(step.emitted)
        if pending is None or self._is_full:
            return
        paths = pending.match(emitted)
        if self._scorer.capability < Capability.TREE:
            paths = self._shortened(paths)
        for row, path in enumerate(paths):
            self._num_cached[row] += len(path)
            is_root_scored = self._num_cached[row] == self._length(row)
            if len(path) > pending.chain_lengths[row]:
                self._root_logits[row] = pending.logits_of(row, path[-1]) if is_root_scored else None
            elif not is_root_scored:
                self._root_logits[row] = None
        self._scorer.commit(paths)

    def select_rows(self, rows: Sequence[int]) -> None:
        """Keep only these rows, in this order, in the model's cache too."""
        self._num_cached = [self._num_cached[b] for b in rows]
        self._root_logits = [self._root_logits[b] for b in rows]
        self._text.select_rows(rows)
        if not self._is_full:
            self._scorer.select_rows(rows)

    def expand(self, frontier: Frontier) -> Proposal:
        """See `DraftSource`; the first pass catches up with what was committed since the last one."""
        if self._pending is None:
            logits = self._catch_up()
        else:
            parents = self._pending.add(frontier, self._text.to_draft)
            logits = self._score(self._text.to_draft(frontier.tokens), parents)
            self._pending.keep_logits(logits)
        return Proposal(self._probs(logits, frontier))

    def _probs(self, logits: Float[Tensor, "B F W"], frontier: Frontier) -> Float[Tensor, "B F V"]:
        """The distributions that children are drawn from; the caller's processors see the target's tokens."""
        return path_probs(self._session, self._text.to_target(logits), frontier)

    def _prefill(self) -> None:
        """Cache the committed tokens of all rows except the last ones, which are the roots."""
        history = self._text.history
        rows = [history.tokens(b)[:-1].tolist() for b in range(history.num_rows)]
        self._num_cached = list(map(len, rows))
        self._scorer.prefill(*left_padded(rows, self._scorer.device))

    def _catch_up(self) -> Tensor:
        """Logits after the roots, [B, 1, W], from one pass over the committed tokens that are not cached yet."""
        history = self._text.history
        if self._scorer.capability < Capability.TREE and len(set(self._num_missing())) > 1:
            self._prefill()
        texts = [history.tokens(b)[self._num_cached[b] :].tolist() for b in range(history.num_rows)]
        pending = PendingNodes(texts)
        self._pending = pending
        if pending.tokens.shape[1] > 0:
            logits = self._score_chains(pending.tokens, pending.parents)
            for row, length in enumerate(pending.chain_lengths):
                self._root_logits[row] = logits[row, length - 1] if length else self._root_logits[row]
        return torch.stack([known for known in self._root_logits if known is not None]).unsqueeze(1)

    def _score_chains(self, tokens: Tensor, parents: Tensor) -> Tensor:
        """Logits [B, M, W]; a model that takes one token at a time gets one at a time."""
        if self._scorer.capability != Capability.PLAIN:
            return self._score(tokens, parents)
        passes = zip(tokens.split(1, 1), parents.split(1, 1), strict=True)
        return torch.cat([self._score(*columns) for columns in passes], 1)

    def _score(self, tokens: Tensor, parents: Tensor) -> Tensor:
        """Logits [B, F, W] on the call's device, which need not be the draft model's."""
        return self._scorer.extend(tokens, parents).logits.to(self._session.device)

    def _num_missing(self) -> list[int]:
        """Per row the committed tokens that are not cached."""
        return [self._length(row) - cached for row, cached in enumerate(self._num_cached)]

    def _shortened(self, paths: list[list[int]]) -> list[list[int]]:
        """Paths shortened until all rows lack equally many tokens: a model without trees has no mask for padding.

        Where a path is too short for that, the next step fills the cache again.
        """
        missing = [count - len(path) for count, path in zip(self._num_missing(), paths, strict=True)]
        return [path[: max(len(path) + m - max(missing), 0)] for path, m in zip(paths, missing, strict=True)]

    def _servable(self, policy: TreePolicy) -> TreePolicy:
        """The policy, or a chain for a model that cannot run trees."""
        if self._scorer.capability == Capability.TREE or is_chain(policy):
            return policy
        if not self._has_warned:
            self._has_warned = True
            warnings.warn("the draft model cannot run trees: it drafts chains", TreespecWarning, stacklevel=2)
        return as_chain(policy)

    def _length(self, row: int) -> int:
        history = self._text.history
        return history.lengths[row] - history.num_padding[row]
