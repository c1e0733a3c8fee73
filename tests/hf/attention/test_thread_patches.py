"""Attributes that are other ones for one thread; every patch of a model: test_position_patches.py."""

import copy
import threading

import torch
from torch import nn

from treespec.hf.thread_patches import current, replaced


def test_what_another_thread_sees():
    layer = nn.Linear(2, 2)
    own, others = [], []
    with replaced(layer, "forward", lambda x: x):
        with replaced(layer, "forward", lambda x: 2 * x):
            own.append(layer(torch.ones(1, 2)).tolist())
            thread = threading.Thread(target=lambda: others.append(current(layer, "forward")))
            thread.start()
            thread.join()
            assert copy.deepcopy(layer)(torch.ones(1, 2)).tolist() == others[0](torch.ones(1, 2)).tolist()
        own.append(layer(torch.ones(1, 2)).tolist())
    assert own == [[[2.0, 2.0]], [[1.0, 1.0]]]
    assert others[0].__func__ is nn.Linear.forward
    assert "forward" not in vars(layer)


def test_an_attribute_that_stood_there_stands_there_again():
    layer = nn.Linear(2, 2)
    layer.forward = own = lambda x: x + 1
    with replaced(layer, "forward", lambda x: own(x) * 2):
        assert layer(torch.ones(1, 2)).tolist() == [[4.0, 4.0]]
    assert layer.forward is own
