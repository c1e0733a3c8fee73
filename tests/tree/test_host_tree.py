"""Trees as lists."""

import pytest

from treespec.tree import HostTree


def test_confidences_are_values_over_the_parents() -> None:
    tree = HostTree([9, 1, 2, 3, 4], [-1, 0, 1, 1, 3], [1.0, 0.5, 0.2, 0.6, 0.0])
    assert tree.confidences() == pytest.approx([1.0, 0.5, 0.4, 1.0, 0.0]), "in [0, 1], also where values rise"


def test_values_that_say_nothing_count_as_certain() -> None:
    assert HostTree([9, 1, 2], [-1, 0, 1], [1.0, 0.0, 0.0]).confidences() == [1.0, 0.0, 1.0]
    assert HostTree([9, 1], [-1, 0], []).confidences() == [1.0, 1.0]
