"""Measurements and the demo. Run from the repository root, e.g. `python -m benchmarks.demo`."""

import os

# Before torch is loaded: spinning OpenMP barriers can slow a pass twentyfold when another process is busy.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
