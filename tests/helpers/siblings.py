"""A root with two children of every sampling scheme."""

import torch

from treespec.tree import TokenTree, TreeBatch

DISTRIBUTIONS = torch.tensor([[0.5, 0.3, 0.2], [0.2, 0.2, 0.6]])


def pair(index: list[int] | None, **options) -> TreeBatch:
    """A root with two children, drawn from rows `index` of DISTRIBUTIONS; None: selected."""
    tree = TokenTree(
        torch.tensor([0, 1, 2]), torch.tensor([-1, 0, 0]), DISTRIBUTIONS if index else None,
        torch.tensor([-1, *index]) if index else None, **options,
    )  # fmt: skip
    return TreeBatch.from_trees([tree])


SELECTED, IID, MIXED = pair(None), pair([0, 0]), pair([0, -1])
WITHOUT_REPLACEMENT = pair([0, 0], is_without_replacement=torch.tensor([False, True, True]))
