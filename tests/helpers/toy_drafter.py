"""A drafter that a user adds: one file, and one line that registers it."""

from treespec.drafters import TokenRecycling


class ToyDrafter(TokenRecycling):
    """Token recycling under another name."""

    def __repr__(self) -> str:
        return "ToyDrafter()"
