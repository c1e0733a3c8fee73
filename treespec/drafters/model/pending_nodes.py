"""The nodes that a draft model has scored since its last commit."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from treespec.protocols import Frontier
from treespec.tree import PADDING_PARENT, pad_rows


class PendingNodes:
    """Converts expanded numbers, and the tokens of accepted paths, into the scorer's pending ids.

    The scorer numbers pending nodes by column over all passes, padding included. The first pass holds the committed
    tokens that were not cached yet as a chain per row of at most M, the root last (-1 if it is cached already). So
    expanded node e > 0 is pending node M - 1 + e.
    """

    def __init__(self, chains: Sequence[Sequence[int]]) -> None:
        """chains: per row the m >= 0 committed tokens that are not cached yet, the root last."""
        lengths = [len(chain) for chain in chains]
        self._width = max(lengths)
        self.chain_lengths = lengths
        """m, per row."""
        self.tokens = torch.tensor(pad_rows(chains, 0), dtype=torch.int64, device="cpu")
        parents = pad_rows([range(-1, m - 1) for m in lengths], PADDING_PARENT)
        self.parents = torch.tensor(parents, dtype=torch.int64, device="cpu")
        self._roots = torch.tensor(lengths, device="cpu").unsqueeze(1) - 1
        self._logits: list[tuple[int, Tensor]] = []
        self._read_nodes: Callable[[], Tensor] | None = None

    def add(self, frontier: Frontier, to_draft: Callable[[Tensor], Tensor]) -> Int[Tensor, "B F"]:
        """Append the nodes of a pass below the root; returns their parents' pending ids.

        `to_draft` gives the draft's ids of tokens on the host, which are read when they are wanted.
        """
        parents = frontier.parents
        self._read_nodes = lambda: to_draft(frontier.expanded_tokens[:, 1:])
        below = torch.where(parents > 0, self._width - 1 + parents, parents)
        above = torch.where(parents == 0, self._roots, below)
        self.parents = torch.cat([self.parents, above], 1)
        return above

    def keep_logits(self, logits: Float[Tensor, "B F V"]) -> None:
        """Keep the raw logits of the nodes added last: one of them may become the next root."""
        self._logits.append((self.parents.shape[1] - logits.shape[1], logits))

    def logits_of(self, row: int, node: int) -> Float[Tensor, "V"]:
        """Raw logits after a pending node that was added by `add`."""
        first, logits = next(entry for entry in reversed(self._logits) if entry[0] <= node)
        return logits[row, node - first]

    def match(self, emitted: Sequence[Sequence[int]]) -> list[list[int]]:
        """Per row the pending nodes of committed tokens: the chain, then what is found of `emitted` below the root."""
        below = [] if self._read_nodes is None else [self._read_nodes()]
        tokens, parents = torch.cat([self.tokens, *below], 1).tolist(), self.parents.tolist()
        return [
            [*range(length), *_longest_match(tokens[row], parents[row], length - 1, emitted[row])]
            for row, length in enumerate(self.chain_lengths)
        ]


def _longest_match(tokens: list[int], parents: list[int], root: int, wanted: Sequence[int]) -> list[int]:
    """The longest path of nodes below `root` that spells a prefix of `wanted`.

    Several siblings may hold the same token (independent draws), of which only one was expanded: all are searched.
    """
    paths = [[root]]
    for token in wanted:
        longer = [
            [*path, node]
            for path in paths
            for node in range(path[-1] + 1, len(tokens))
            if parents[node] == path[-1] and tokens[node] == token
        ]
        if not longer:
            break
        paths = longer
    return paths[0][1:]
