"""What stands in a tree's arrays where no node and no distribution is meant, and the names of the sampling schemes of
siblings."""

ROOT_PARENT = -1
"""The parent of every root."""

PADDING_PARENT = -2
"""The parent of what is no node: rows of a batch are padded to the size of the largest."""

POINT_MASS = -1
"""The distribution index of a child that was selected, not drawn."""

SELECTED, IID, WITHOUT_REPLACEMENT, MIXED = "selected", "iid", "without_replacement", "mixed"
