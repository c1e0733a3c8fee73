"""Toy language models over a table of random distributions, and a scorer whose "cache" records (token, position)."""

from collections import Counter

import torch

from treespec.protocols import Capability, Proposal, Scores


class TableLM:
    """Logits that depend on the last two tokens and on the position, as a plain function of the whole text."""

    def __init__(self, vocab_size: int, seed: int = 0, scale: float = 1.5) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.vocab_size = vocab_size
        self._table = scale * torch.randn(vocab_size, vocab_size, 2, vocab_size, generator=generator)

    def logits(self, text) -> torch.Tensor:
        """float32 [V] after the tokens `text`."""
        before = text[-2] if len(text) > 1 else 0
        return self._table[before, text[-1], len(text) % 2]


class ToyScorer:
    """A `CausalScorer` over a `TableLM`. It rejects holes, unknown parents, broken paths and repeated work."""

    hidden_layers: tuple[int, ...] = ()

    def __init__(self, model: TableLM, capability=Capability.TREE, max_positions: int | None = None) -> None:
        self.model, self.capability, self.max_positions = model, capability, max_positions
        self.vocab_size, self.device = model.vocab_size, torch.device("cpu")
        self.num_passes = 0
        self.num_prefills = 0
        self.scored: Counter[tuple[int, ...]] = Counter()

    def prefill(self, ids, mask) -> Scores:
        assert (mask.long().diff(dim=1) >= 0).all(), "only left padding"
        kept = [row[valid].tolist() for row, valid in zip(ids, mask, strict=True)]
        self.cache = [list(zip(row, range(len(row)), strict=True)) for row in kept]
        self.names = list(range(len(kept)))
        self._forget()
        self.num_prefills += 1
        logits = torch.zeros(len(kept), min(ids.shape[1], 1), self.vocab_size)
        for name, row in enumerate(kept):
            if row:
                self.scored[(name, *row)] += 1
                logits[name] = self.model.logits(row)
        return Scores(logits)

    def _forget(self) -> None:
        self.pending: list[list[tuple[int, int, int] | None]] = [[] for _ in self.cache]

    def extend(self, tokens, parents) -> Scores:
        self.num_passes += 1
        if self.capability == Capability.PLAIN:
            assert tokens.shape[1] == 1, "one token at a time"
        logits = torch.zeros(*tokens.shape, self.vocab_size)
        for row, pending in enumerate(self.pending):
            first = len(pending)
            for column, (token, parent) in enumerate(zip(tokens[row].tolist(), parents[row].tolist(), strict=True)):
                pending.append(self._node(pending, first + column, token, parent, len(self.cache[row])))
                if parent != -2:
                    text = self._text(row, first + column)
                    self.scored[(self.names[row], *text)] += 1
                    logits[row, column] = self.model.logits(text)
        return Scores(logits)

    def _node(self, pending, number, token, parent, num_cached):
        if self.capability < Capability.TREE:
            assert parent == number - 1, "only chains without padding"
        if parent == -2:
            return None
        assert -1 <= parent < number, f"node {number} hangs on unknown node {parent}"
        assert parent == -1 or pending[parent] is not None, f"node {number} hangs on padding"
        position = num_cached if parent == -1 else pending[parent][2] + 1
        assert self.max_positions is None or position < self.max_positions, "beyond the context"
        return token, parent, position

    def _text(self, row, node) -> tuple[int, ...]:
        below = []
        while node >= 0:
            token, node, _ = self.pending[row][node]
            below.append(token)
        return (*(token for token, _ in self.cache[row]), *reversed(below))

    def commit(self, paths) -> None:
        assert len(paths) == len(self.cache)
        for row, path in enumerate(paths):
            last = -1
            for node in path:
                token, parent, position = self.pending[row][node]
                assert parent == last, f"path {path} is broken at {node}"
                assert position == len(self.cache[row]), f"hole before position {position}"
                self.cache[row].append((token, position))
                last = node
        self._forget()

    def select_rows(self, rows) -> None:
        self.cache, self.names = [self.cache[b] for b in rows], [self.names[b] for b in rows]
        self._forget()


class TableSource:
    """A `DraftSource` whose distributions depend on the whole path, so that a wrong parent shows as a wrong
    distribution.

    `num_candidates` makes it a table drafter; `is_sparse` gives some tokens no mass.
    """

    def __init__(
        self, roots, model, is_sampling=True, num_candidates=None, is_sparse=False, seed=0, dtype=torch.float32
    ) -> None:
        self.root_tokens, self.is_sampling, self.num_candidates = torch.tensor(roots), is_sampling, num_candidates
        self.generator = torch.Generator().manual_seed(seed)
        self._model, self._is_sparse, self._dtype = model, is_sparse, dtype
        self._probs: dict[tuple[int, ...], torch.Tensor] = {}
        self._paths: list[list[tuple[int, ...] | None]] = [[] for _ in roots]
        self.widths: list[int] = []

    def probs(self, path) -> torch.Tensor:
        if path not in self._probs:
            probs = self._model.logits(path).to(self._dtype).softmax(-1)
            if self._is_sparse:
                probs = torch.where(probs < probs.max() / 3, 0.0, probs)
            self._probs[path] = probs / probs.sum()
        return self._probs[path]

    def expand(self, frontier) -> Proposal:
        tokens, size = frontier.tokens, self._model.vocab_size
        self.widths.append(tokens.shape[1])
        nothing, distributions = torch.eye(size, dtype=self._dtype)[0], []  # One outcome: padding has no draws.
        lists = (tokens.tolist(), frontier.parents.tolist(), frontier.depths.tolist(), frontier.path_tokens())
        roots = self.root_tokens.tolist()
        for known, root, row, parents, depths, paths in zip(self._paths, roots, *lists, strict=True):
            level = []
            for token, parent in zip(row, parents, strict=True):
                assert parent < len(known), "a parent that is not expanded yet"
                if parent == -1:
                    assert not known, "the root is expanded once, first and alone"
                    assert token == root
                above = () if parent == -1 else None if parent == -2 else known[parent]
                assert above is not None or parent == -2, "the parent is padding"
                level.append(None if above is None else (*above, token))
            below_root = [None if path is None else path[1:] for path in level]
            assert paths == below_root, "ancestors or tokens of other nodes"
            assert depths == [len(path or ()) for path in below_root]
            distributions += [nothing if path is None else self.probs(path) for path in level]
            known += level
        distributions = torch.stack(distributions).view(*tokens.shape, size)
        if self.num_candidates is None:
            return Proposal(distributions)
        probs, candidates = distributions.topk(self.num_candidates, dim=-1)
        return Proposal(probs, candidates)


class FixedLength:
    """Stops after so many tokens."""

    def __init__(self, length):
        self.length = length

    def num_kept(self, row, ids, new_tokens):
        return None if len(ids) < self.length else len(new_tokens)

    def max_new(self, row, length, num_padding):
        return self.length - length
