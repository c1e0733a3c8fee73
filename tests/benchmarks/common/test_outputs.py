"""What counts of an output in a batch."""

from benchmarks.common.outputs import strip_padding


def test_strip_padding_keeps_the_end_token():
    assert strip_padding([4, 5, 2, 2, 2], 2) == [4, 5, 2]
    assert strip_padding([4, 5, 6], 2) == [4, 5, 6]
