"""Calibration: estimates shrink towards coarser cells and forget."""

import pytest

from treespec.policies.calibration import Calibration

PRIOR, MEMORY = 20.0, 0.99


def test_estimates_are_shrunk_towards_the_coarser_one_and_forget():
    calibration = Calibration(PRIOR, MEMORY)
    assert calibration.estimate(0.3, ["coarse", "fine"]) == 0.3
    calibration.update(True, ["coarse", "fine"])
    calibration.update(False, ["coarse"])
    coarse = (MEMORY + PRIOR * 0.3) / (MEMORY + 1 + PRIOR)
    assert calibration.estimate(0.3, ["coarse"]) == pytest.approx(coarse)
    assert calibration.estimate(0.3, ["coarse", "fine"]) == pytest.approx((1 + PRIOR * coarse) / (1 + PRIOR))
    assert calibration.estimate(0.3, ["unmet"]) == 0.3
    for is_hit in (False, True):
        for _ in range(3000):
            calibration.update(is_hit, ["coarse"])
        limit = (is_hit / (1 - MEMORY) + PRIOR * 0.5) / (1 / (1 - MEMORY) + PRIOR)
        assert calibration.estimate(0.5, ["coarse"]) == pytest.approx(limit, abs=0.01)
