"""How good a drafter is on texts that it has not seen: acceptance by depth and rank, and what trees make of it.

Drafts are judged along texts that the target wrote, so the token that comes next is what verification would keep: at
temperature 0 a draft token is accepted when it is the target's choice, which in greedy texts is the text's own token.

Axis letters: T tokens, D depths, R ranks.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

NUM_RANKS = 8
MIN_GREEDY = 32
"""A text's greedy end must be so long to be counted: short ones are there by chance."""


class JudgedText(NamedTuple):
    """One text: `ranks` int64, `overlaps` float32 and `is_judged` bool [T, D] as in `Judged`.

    `is_best` bool [T]: what comes next is the target's most probable token.
    """

    ranks: Tensor
    overlaps: Tensor
    is_judged: Tensor
    is_best: Tensor


@dataclass(frozen=True)
class Evaluation:
    """Measured on held-out texts.

    Args:
        acceptance: by depth and rank: how often the token of that rank is the right one, given that all before it were.
        greedy_acceptance: the same where the target's choice is its most probable token (temperature 0).
        overlap: by depth: the mass that draft and target share, the acceptance of one sampled token (temperature 1).
        chain: by length of a chain: accepted draft tokens per round and one, temperature 0, rounds played along texts;
            without greedy texts nothing.
        sampled_chain: the same at temperature 1 in expectation, from the overlaps.
        tree: by number of nodes, the root included: the same at temperature 0 for the best tree of fixed shape; without
            greedy texts nothing.
        num_places: drafts judged at the first depth.
        num_greedy_places: of those at temperature 0.
    """

    acceptance: list[list[float]]
    greedy_acceptance: list[list[float]]
    overlap: list[float]
    chain: dict[int, float]
    sampled_chain: dict[int, float]
    tree: dict[int, float]
    num_places: int
    num_greedy_places: int

    def summary(self) -> dict[str, float]:
        """The main numbers by name; those at temperature 0 only where there are greedy texts."""
        longest = max(self.sampled_chain)
        sampled = {"overlap": self.overlap[0], f"sampled_chain_{longest}": self.sampled_chain[longest]}
        if not self.num_greedy_places:
            return sampled
        greedy = {"acceptance": self.greedy_acceptance[0][0], f"chain_{longest}": self.chain[longest]}
        return greedy | {f"tree_{size}": value for size, value in self.tree.items()} | sampled

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def evaluate(texts: Iterable[JudgedText], tree_sizes: Iterable[int] = (16, 32)) -> Evaluation:
    """Sum up judged texts; there must be one."""
    ranks, overlaps, judged, greedy = [], [], [], []
    rounds: list[list[Tensor]] = []
    for text in texts:
        start = greedy_start(text.is_best)
        is_greedy = torch.arange(len(text.ranks), device=text.ranks.device) >= start
        ranks.append(text.ranks)
        overlaps.append(text.overlaps)
        judged.append(text.is_judged)
        greedy.append(text.is_judged & is_greedy.unsqueeze(1))
        ends = text.ranks[start:], text.is_judged[start:]
        # Chains of other lengths begin their rounds elsewhere.
        rounds.append([play_rounds(*(part[:, :k] for part in ends)) for k in range(1, text.ranks.shape[1] + 1)])
    every, shared, known = torch.cat(ranks), torch.cat(overlaps), torch.cat(judged)
    at_zero, accepted = torch.cat(greedy), map(torch.cat, zip(*rounds, strict=True))
    table, num_depths = histogram(every, at_zero), every.shape[1]
    whole, has_greedy = known.all(1), bool(at_zero[:, 0].any())
    expected = shared[whole].cumprod(1).mean(0).nan_to_num()
    return Evaluation(
        acceptance=histogram(every, known),
        greedy_acceptance=table,
        overlap=[float(shared[:, d][known[:, d]].mean().nan_to_num()) for d in range(num_depths)],
        chain={k: _mean(of_length) + 1 for k, of_length in enumerate(accepted, 1) if has_greedy},
        sampled_chain={k: float(expected[:k].sum()) + 1 for k in range(1, num_depths + 1)},
        tree={size: best_tree(table, size) for size in tree_sizes if has_greedy},
        num_places=int(known[:, 0].sum()),
        num_greedy_places=int(at_zero[:, 0].sum()),
    )


def greedy_start(is_best: Tensor) -> int:
    """Where the end of a text begins in which every token is the most probable one; its length if that is short."""
    wrong = (~is_best).nonzero()
    # The last token of a text has not been asked about.
    start = int(wrong[wrong < len(is_best) - 1].max()) + 1 if bool((wrong < len(is_best) - 1).any()) else 0
    return start if len(is_best) - start >= MIN_GREEDY else len(is_best)


def play_rounds(ranks: Tensor, is_judged: Tensor) -> Tensor:
    """Accepted tokens, int64, of every round of chains as long as there are depths, played along a text.

    A round starts from the token at an anchor and accepts as long as the text's token is the first in rank; the next
    one starts behind the token that the target adds.
    """
    right = (ranks == 0).long().cumprod(1).sum(1)
    accepted, place = [], 0
    while place < len(ranks) and bool(is_judged[place].all()):
        accepted.append(int(right[place]))
        place += accepted[-1] + 1
    return torch.tensor(accepted, dtype=torch.int64)


def histogram(ranks: Tensor, is_counted: Tensor) -> list[list[float]]:
    """By depth and rank below `NUM_RANKS`: the share of counted places whose text's token has that rank."""
    table = []
    for depth in range(ranks.shape[1]):
        own = ranks[:, depth][is_counted[:, depth]]
        counts = own[own < NUM_RANKS].bincount(minlength=NUM_RANKS)
        table.append((counts / max(len(own), 1)).tolist())
    return table


def best_tree(acceptance: list[list[float]], num_nodes: int) -> float:
    """Emitted tokens per round of the best tree of so many nodes: the largest path products (Chen et al. 2024).

    A rank that was right more often than the one before it, by chance, comes first: so a node's next sibling and first
    child are never worth more than itself.
    """
    acceptance = [sorted(row, reverse=True) for row in acceptance]
    total, frontier = 1.0, [(-acceptance[0][0], 0, 0, 1.0)]
    for _ in range(num_nodes - 1):
        if not frontier:
            break
        value, depth, rank, above = heapq.heappop(frontier)
        total -= value
        if rank + 1 < len(acceptance[depth]):
            heapq.heappush(frontier, (-above * acceptance[depth][rank + 1], depth, rank + 1, above))
        if depth + 1 < len(acceptance):
            heapq.heappush(frontier, (value * acceptance[depth + 1][0], depth + 1, 0, -value))
    return total


def _mean(values: Tensor) -> float:
    return float(values.float().mean()) if len(values) else 0.0
