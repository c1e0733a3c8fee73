"""Shared settings: one thread, so that tests running side by side do not stall each other."""

import torch

torch.set_num_threads(1)
