"""Shared settings: shapes in signatures are checked, and one thread, so that parallel tests do not stall each other."""

import torch
from helpers import shape_checks

CHECKED = (
    "treespec.tree",
    "treespec.verification",
    "treespec.policies",
    "treespec.hf.attention.mask",
    "treespec.hf.cache",
    "treespec.hf.models",
)
shape_checks.install(CHECKED)  # Before the first import of treespec.
torch.set_num_threads(1)
