"""How good a drafter is on held-out texts: acceptance by depth and rank, and expected lengths of chains and trees.

Drafts are compared with texts that the target generated: in its greedily generated text the text's own token is the
target's most probable one, which is the draft token that is accepted at temperature 0.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from treespec.policies.sequoia import optimal_paths

NUM_RANKS = 8
TREE_SIZES = (16, 32)
MIN_GREEDY = 32
"""The least length of a text's greedy end; shorter ones occur by chance in sampled text."""


class EvaluatedDrafts(NamedTuple):
    """Drafts compared with a text [T, D] or with those of a batch [B, T, D], by anchor and depth."""

    ranks: Tensor  # int64, how many tokens the drafter finds more probable than the text's own.
    overlaps: Tensor  # float32, the mass that its distribution shares with the target's.
    is_evaluated: Tensor  # bool, where there is a draft and the target generated the token.
    is_greedy: Tensor  # bool [T] or [B, T]: the next token is the target's most probable one.


@dataclass(frozen=True)
class Evaluation:
    """Measured on held-out texts; `chain` and `tree` are empty if no text has a greedy end."""

    acceptance: list[list[float]]
    """By depth and rank: how often the token of that rank is the text's, given that all before it were."""
    greedy_acceptance: list[list[float]]  # The same where the target wrote at temperature 0.
    overlap: list[float]
    """By depth: the mass that draft and target share, the acceptance of one sampled token (temperature 1)."""
    chain: dict[int, float]
    """By length: tokens per round at temperature 0, simulated on the parts of texts that the target wrote greedily."""
    sampled_chain: dict[int, float]  # The expected tokens per round at temperature 1, computed from the overlaps.
    tree: dict[int, float]
    """By number of nodes, the root included: tokens per round at temperature 0 of the best tree of fixed shape."""
    num_positions: int  # Drafts evaluated at the first depth.
    num_greedy_positions: int  # Those of them at temperature 0.

    def summary(self) -> dict[str, float]:
        """The main numbers by name; those at temperature 0 only if there are greedy texts."""
        longest = max(self.sampled_chain)
        sampled = {"overlap": self.overlap[0], f"sampled_chain_{longest}": self.sampled_chain[longest]}
        if not self.num_greedy_positions:
            return sampled
        greedy = {"acceptance": self.greedy_acceptance[0][0], f"chain_{longest}": self.chain[longest]}
        return greedy | {f"tree_{size}": value for size, value in self.tree.items()} | sampled


def evaluate(texts: Iterable[EvaluatedDrafts]) -> Evaluation:
    """Sum up one or more evaluated texts."""
    texts = list(texts)
    starts = [greedy_start(text.is_greedy) for text in texts]
    ranks, overlaps, counted, _ = map(torch.cat, zip(*texts, strict=True))
    is_end = torch.cat(
        [torch.arange(len(text.ranks), device="cpu") >= start for text, start in zip(texts, starts, strict=True)]
    )
    counted_greedy = counted & is_end.unsqueeze(1)
    num_depths = ranks.shape[1]
    has_greedy = bool(counted_greedy[:, 0].any())
    table = histogram(ranks, counted_greedy)
    expected = overlaps[counted.all(1)].cumprod(1).mean(0).nan_to_num()
    return Evaluation(
        acceptance=histogram(ranks, counted),
        greedy_acceptance=table,
        overlap=[float(overlaps[:, d][counted[:, d]].mean().nan_to_num()) for d in range(num_depths)],
        chain={k: _chain_length(texts, starts, k) for k in range(1, num_depths + 1) if has_greedy},
        sampled_chain={k: float(expected[:k].sum()) + 1 for k in range(1, num_depths + 1)},
        tree={size: best_tree(table, size) for size in TREE_SIZES if has_greedy},
        num_positions=int(counted[:, 0].sum()),
        num_greedy_positions=int(counted_greedy[:, 0].sum()),
    )


def _chain_length(texts: list[EvaluatedDrafts], starts: list[int], length: int) -> float:
    """Mean tokens per round of chains of `length`, from `starts` on; each length plays its own rounds."""
    accepted = [
        count
        for text, start in zip(texts, starts, strict=True)
        for count in play_rounds(text.ranks[start:, :length], text.is_evaluated[start:, :length])
    ]
    return 1 + sum(accepted) / max(len(accepted), 1)


def greedy_start(is_greedy: Tensor) -> int:
    """The start of the end of a text in which every token is the most probable one; its length if that is short."""
    # The last token of a text has no next one.
    wrong = (~is_greedy[:-1]).nonzero()
    start = int(wrong.max()) + 1 if len(wrong) else 0
    return start if len(is_greedy) - start >= MIN_GREEDY else len(is_greedy)


def play_rounds(ranks: Tensor, is_evaluated: Tensor) -> list[int]:
    """Accepted tokens of every round of chains of length D, played along a text.

    A round accepts draft tokens from its anchor on as long as the text's token has rank 0; the next one starts from the
    token that the target adds.
    """
    right = (ranks == 0).long().cumprod(1).sum(1)
    accepted = []
    anchor = 0
    while anchor < len(ranks) and bool(is_evaluated[anchor].all()):
        accepted.append(int(right[anchor]))
        anchor += accepted[-1] + 1
    return accepted


def histogram(ranks: Tensor, is_counted: Tensor) -> list[list[float]]:
    """By depth and rank below `NUM_RANKS`: the share of counted positions whose text's token has that rank."""
    known = [of_depth[counted] for of_depth, counted in zip(ranks.T, is_counted.T, strict=True)]
    return [(own[own < NUM_RANKS].bincount(minlength=NUM_RANKS) / max(len(own), 1)).tolist() for own in known]


def best_tree(acceptance: list[list[float]], num_nodes: int) -> float:
    """Tokens per round of the best tree of `num_nodes`, see `optimal_paths`; ranks are sorted by acceptance first."""
    table = [sorted(row, reverse=True) for row in acceptance]
    paths = optimal_paths(table, num_nodes)
    return 1.0 + sum(math.prod(table[depth][rank] for depth, rank in enumerate(path)) for path in paths)
