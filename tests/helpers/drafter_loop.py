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
        self.chunks = [[list(prompt)] for prompt in prompts]
        """Per row the prompt and what each step emitted."""
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
            self.chunks[row].append(list(emitted[-1]))
        if logits is None:
            logits = torch.zeros(*batch.tokens.shape, self.session.vocab_size)
        self.drafter.update(VerifiedStep(batch, verdicts, Scores(logits), emitted))
        return emitted

    def keep_rows(self, rows):
        self.session.row_ids[:] = [self.session.row_ids[b] for b in rows]
        self.chunks = [self.chunks[b] for b in rows]
        self.history.select_rows(rows)
        self.drafter.select_rows(rows)


class Recent:
    """A path-dependent processor: tokens are less likely the more often they stand in the text; and by the row."""

    is_path_free = is_order_free = False
    can_remove_all, ignores_padding = True, False

    def __init__(self, is_row_free=False, forbidden=()):
        self.is_row_free, self.forbidden = is_row_free, list(forbidden)

    def __call__(self, ids, logits, row):
        counts = torch.stack([torch.bincount(text, minlength=logits.shape[-1]) for text in ids])
        scores = logits.float() - 0.7 * counts
        if not self.is_row_free:
            scores = scores - 0.1 * row * torch.arange(logits.shape[-1])
        scores[:, self.forbidden] = -torch.inf
        return scores


def reference_probs(model, loop, row, path, translate=None, draft_ids=None):
    """The draft distribution after a path of tokens below the root, from nothing but the text.

    `draft_ids`: the draft's id of every target token, -1 for none; `translate` its tokens of a piece of text. None: the
    vocabularies are one.
    """
    first, *more = [*loop.chunks[row], *([token] for token in path)]
    text = [token for tokens in (first, *more) for token in tokens]
    if translate is None:
        logits = model.logits(tuple(text))
    else:
        known = torch.tensor(draft_ids)
        found = model.logits((*translate.start(first), *(token for tokens in more for token in translate(tokens))))
        logits = torch.where(known >= 0, found[known.clamp(min=0)], -torch.inf)
    ids = torch.tensor([[0] * loop.history.num_padding[row] + text])
    return loop.session.processors(ids, logits.unsqueeze(0), loop.session.row_ids[row])[0].softmax(-1)


def check_distributions(batch, model, loop, are_values_probs=True, **options):
    """Stored distributions, and values where they are the paths' draft probabilities, equal those recomputed from
    scratch; returns how many nodes had one."""
    count = 0
    for row, tree in enumerate(batch.trees):
        for node in range(1, tree.num_nodes):
            siblings = tree.children(tree.parent_list[node])
            path = [tree.token(i) for i in tree.path_to(node)[1:-1]]
            probs = reference_probs(model, loop, row, path, **options)
            share = batch.values[row, node] / batch.values[row, tree.parent_list[node]]
            assert not are_values_probs or abs(float(share / probs[tree.token(node)]) - 1) < 1e-3
            stored = tree.draft_probs_of(node)
            if stored is None:
                continue
            if tree.is_without_replacement is not None and tree.is_without_replacement[node]:
                probs[[tree.token(i) for i in siblings[: siblings.index(node)]]] = 0
            else:  # The sample of a mixed scheme comes from what is not selected; others have no second sibling here.
                probs[[tree.token(i) for i in siblings[1:]]] = 0
            torch.testing.assert_close(stored, probs / probs.sum(), atol=1e-5, rtol=0)
            count += 1
    return count
