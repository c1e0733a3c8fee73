"""What counts of the outputs of `generate` in a batch."""


def strip_padding(tokens: list[int], end: int) -> list[int]:
    """The tokens up to the first end-of-sequence token, which pads the rest of a batch's shorter rows here."""
    return tokens[: tokens.index(end) + 1] if end in tokens else tokens
