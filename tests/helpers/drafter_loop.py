"""The engine's side of a call, for tests of drafters alone."""

import numpy as np
import torch

from treespec.protocols import History, Scores, Session, VerifiedStep
from treespec.sampling import NoProcessors
from treespec.tree import Verdict

VOCAB = 6


class Loop:
    """History, verdicts at random, rows that finish early."""

    def __init__(self, drafter, prompts, policy=None, is_sampling=True, processors=None, seed=0, vocab_size=VOCAB):
        width = max(map(len, prompts))
        ids = torch.tensor([[0] * (width - len(p)) + p for p in prompts])
        mask = torch.tensor([[False] * (width - len(p)) + [True] * len(p) for p in prompts])
        self.history, self.drafter = History(ids, mask), drafter
        self.random = np.random.default_rng(seed)
        self.session = Session(
            history=self.history,
            is_sampling=is_sampling,
            processors=processors or NoProcessors(),
            generator=torch.Generator().manual_seed(seed),
            device=torch.device("cpu"),
            vocab_size=vocab_size,
            row_ids=list(range(len(prompts))),
            policy=policy,
        )
        drafter.start(self.session)

    def propose(self, max_depth=99):
        batch = self.drafter.propose(max_depth)
        assert bool(batch.is_valid)
        assert torch.equal(batch.tokens[:, 0], self.history.last_tokens)
        return batch

    def step(self, batch, logits=None, emit=None):
        """Accept a random path of every row, or emit the given tokens; then a random next token."""
        verdicts, emitted = [], []
        for row, tree in enumerate(batch.trees):
            path = [0]
            while (children := tree.children(path[-1])) and self.random.random() < 0.75:
                path.append(int(self.random.choice(children)))
            # As after any verification, the next token is not one of the rejected children.
            rejected = {tree.token(i) for i in tree.children(path[-1])}
            left = [token for token in range(self.session.vocab_size) if token not in rejected] or [0]
            next_token = int(self.random.choice(left))
            tokens = [tree.token(i) for i in path[1:]] + [next_token]
            emitted.append(tokens if emit is None else emit[row])
            verdicts.append(Verdict(tuple(path), next_token, False))
            self.history.append(row, emitted[-1])
        if logits is None:
            logits = torch.zeros(*batch.tokens.shape, self.session.vocab_size)
        self.drafter.update(VerifiedStep(batch, verdicts, Scores(logits), emitted))
        return emitted

    def keep_rows(self, rows):
        self.session.row_ids[:] = [self.session.row_ids[b] for b in rows]
        self.history.select_rows(rows)
        self.drafter.select_rows(rows)
