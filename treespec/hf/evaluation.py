"""Evaluation mode for the time of a pass, whatever the mode that a model is in, and whichever threads run it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

import torch

_lock = threading.Lock()
_evaluating: WeakKeyDictionary[torch.nn.Module, tuple[int, list[torch.nn.Module]]] = WeakKeyDictionary()


@contextmanager
def evaluation_mode(model: torch.nn.Module) -> Iterator[None]:
    """Evaluation mode inside, the modules' own modes again afterwards.

    In training mode dropout would change the distribution from pass to pass, and gradient checkpointing would take the
    cache away. Where several threads run passes of one model, the last one to leave restores the modes.
    """
    with _lock:
        count, training = _evaluating.get(model, (0, []))
        if count == 0 and model.training:
            training = [module for module in model.modules() if module.training]
            for module in training:
                module.training = False
        _evaluating[model] = count + 1, training
    try:
        yield
    finally:
        with _lock:
            count, training = _evaluating.pop(model)
            if count > 1:
                _evaluating[model] = count - 1, training
            else:
                for module in training:
                    module.training = True
