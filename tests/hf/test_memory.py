"""Nothing piles up over a long generation: neither in the process nor in the cache's storage."""

import gc
import os

import psutil
import pytest
import torch
from tiny import prompt, tiny_llama

from treespec import TokenRecycling, TreeSpeculation
from treespec.policies import BestFirst

NUM_TOKENS, WARM = 20_000, 2_000


def resident_bytes() -> int:
    gc.collect()
    return psutil.Process(os.getpid()).memory_info().rss
