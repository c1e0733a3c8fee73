"""A draft model with any other tokenizer: its text is decoded and encoded again in the target's tokens.

String-level drafting (SLEM of Timor et al. 2025, as in transformers' universal assisted decoding), for trees: the
draft model grows a tree of its own tokens, every path's text becomes a path of the target's, and these make one tree of
selected children. They have no distribution to sample from, so this suits greedy decoding; sampled output is exact too,
but `SharedVocabulary` accepts more there.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, takewhile

import torch

from treespec.checks import ShowsOptions, check_count
from treespec.drafters.base import policy_of_call, single_nodes
from treespec.drafters.model.draft_model import DraftModel
from treespec.drafters.model.token_map import (
    NOT_SHARED,
    START_TOKEN,
    TextCodec,
    Translator,
    continue_text,
    is_special,
    known_tokens,
    left_padded,
    shared_tokens,
    spell,
)
from treespec.protocols import CausalScorer, History, Session, VerifiedStep
from treespec.sampling import NoProcessors
from treespec.tree import HostTree, Path, TokenTree, TreeBatch


class ReEncoding(ShowsOptions):
    """Drafts with a model that has another tokenizer, by way of the text; see `Drafter` for its methods.

    The caller's logits processors are for the target's tokens and are not applied to the draft's.

    Args:
        draft: the draft model's tokenizer.
        target: the target's.
        max_length: see `DraftModel`, in draft tokens.
        lookback: how many committed tokens are encoded together with a continuation, so that it is cut into tokens as
            it would be within its text; `ConfigError` unless it is a positive int.
    """

    def __init__(
        self,
        scorer: CausalScorer,
        draft: TextCodec,
        target: TextCodec,
        max_length: int | None = None,
        lookback: int = 8,
    ) -> None:
        self._num_logits = scorer.vocab_size
        self._inner = DraftModel(scorer, max_length)
        self._draft = draft
        self._target = target
        self._lookback = check_count("lookback", lookback)
        is_kept = torch.tensor([is_special(target, token) for token in range(len(target.pieces))], device="cpu")
        special = torch.where(is_kept, shared_tokens(target, draft), NOT_SHARED)
        self._translate = Translator(target, draft, special)
        self._special_of = {own: token for token, own in enumerate(special.tolist()) if own != NOT_SHARED}

    @property
    def num_weights(self) -> int:
        return self._inner.num_weights

    def start(self, session: Session) -> None:
        """Read the prompt in the draft's tokens."""
        self._session = session
        history = session.history
        prompts = [history.tokens(b).tolist() for b in range(history.num_rows)]
        self._tails = [tokens[-self._lookback :] for tokens in prompts]
        starts = [known_tokens(self._translate.start(tokens), self._num_logits) for tokens in prompts]
        self._text = History(*left_padded([tokens or [START_TOKEN] for tokens in starts], session.device))
        inner = replace(session, history=self._text, is_sampling=False, processors=NoProcessors())
        self._inner.start(replace(inner, vocab_size=self._num_logits))
        self._trees: TreeBatch | None = None

    def propose(self, max_depth: int) -> TreeBatch:
        """The draft model's trees, re-encoded. See `Drafter`."""
        self._trees = self._inner.propose(max_depth)
        if self._trees.max_nodes == 1:
            return single_nodes(self._session.history.last_tokens)
        assert self._trees.values is not None
        rows = zip(self._trees.trees, self._trees.values.tolist(), self._tails, strict=True)
        paths = [self._encode(tree, values, tail, max_depth) for tree, values, tail in rows]
        num_nodes = policy_of_call(self._session).max_nodes
        roots = zip(self._tails, paths, strict=True)
        return TreeBatch.from_host_trees([tree_of_paths(tail[-1], found, num_nodes) for tail, found in roots])

    def update(self, step: VerifiedStep) -> None:
        """Update the draft model with the emitted text; its own drafted tokens stay as far as they spell that text."""
        trees, self._trees = self._trees, None
        translated = []
        for row, emitted in enumerate(step.emitted):
            tokens = self._translate_emitted(None if trees is None else trees.trees[row], emitted)
            self._text.append(row, tokens)
            self._tails[row] = [*self._tails[row], *emitted][-self._lookback :]
            translated.append(tokens)
        self._inner.update(replace(step, emitted=translated))

    def select_rows(self, rows: Sequence[int]) -> None:
        self._tails = [self._tails[row] for row in rows]
        self._text.select_rows(rows)
        self._inner.select_rows(rows)

    def _encode(
        self, tree: TokenTree, values: Sequence[float], tail: Sequence[int], max_depth: int
    ) -> dict[Path, float]:
        """The target's paths for a tree of draft tokens below a text that ends with `tail`, with their values."""
        found: dict[Path, float] = {}
        for leaf in tree.leaf_paths():
            path: Path = ()
            for token, value in self._encode_path([(tree.token(node), values[node]) for node in leaf[1:]], tail):
                if token >= self._session.vocab_size or len(path) == max_depth:
                    break
                path = (*path, token)
                found[path] = max(found.get(path, 0.0), value)
        return found

    def _encode_path(self, drafted: Sequence[tuple[int, float]], tail: Sequence[int]) -> list[tuple[int, float]]:
        """Target tokens up to a special one; each has the value of the draft token in which it ends."""
        steps = list(takewhile(lambda step: not is_special(self._draft, step[0]), drafted))
        after = drafted[len(steps) : len(steps) + 1]
        ending = [(self._special_of[token], value) for token, value in after if token in self._special_of]
        pieces = [spell(self._draft, [token]) for token, _ in steps]
        tokens = continue_text(self._target, self._before(tail), b"".join(pieces))
        if steps and not tokens:
            return []  # The text does not continue where the target's last token ends.
        ends = list(accumulate(map(len, pieces)))
        reached = accumulate(len(spell(self._target, [token])) for token in tokens)
        found = [(token, steps[bisect_left(ends, end)][1]) for token, end in zip(tokens, reached, strict=True)]
        return [*found, *ending]

    def _before(self, tail: Sequence[int]) -> bytes:
        """The text after the last special token."""
        ordinary = list(takewhile(lambda token: not is_special(self._target, token), reversed(tail)))
        return spell(self._target, ordinary[::-1])

    def _translate_emitted(self, tree: TokenTree | None, emitted: Sequence[int]) -> list[int]:
        """The emitted text in the draft's tokens; its beginning in drafted ones, as far as a path spells it."""
        head = list(takewhile(lambda token: not is_special(self._target, token), emitted))
        text = spell(self._target, head)
        drafted = [] if tree is None else [tree.token(node) for node in longest_path(tree, self._draft, text)[1:]]
        rest = self._draft.encode(text[len(spell(self._draft, drafted)) :])
        return [*drafted, *known_tokens([*rest, *self._translate(emitted[len(head) :])], self._num_logits)]


def longest_path(tree: TokenTree, codec: TextCodec, text: bytes) -> Path:
    """The drafted path, root included, that spells the most of the beginning of `text`; of equal ones the first."""
    spelled: dict[int, int] = {0: 0}
    for node in range(1, tree.num_nodes):
        piece = spell(codec, [tree.token(node)])
        above = spelled.get(tree.parent_list[node])
        if piece and above is not None and text.startswith(piece, above):
            spelled[node] = above + len(piece)
    return tree.path_to(max(spelled, key=spelled.__getitem__))


def tree_of_paths(root: int, values: dict[Path, float], num_nodes: int) -> HostTree:
    """The `num_nodes - 1` most valuable paths as a tree below `root`; values must not rise along a path."""
    best = sorted(values, key=lambda path: (-values[path], len(path)))[: num_nodes - 1]
    ids = {(): 0} | {path: node for node, path in enumerate(best, start=1)}
    return HostTree(
        tokens=[root, *(path[-1] for path in best)],
        parents=[-1, *(ids[path[:-1]] for path in best)],
        values=[1.0, *(values[path] for path in best)],
    )
