"""Drafters and policies by the target's active adapters, so that each set of adapters has its own learned state."""

import io
import pickle
from collections.abc import Hashable
from dataclasses import replace
from typing import TypeVar

import torch

from treespec.hf.generation.call import Options
from treespec.hf.models.base import ModelScorer
from treespec.protocols import Drafter, Session, TreePolicy

Given = TypeVar("Given", bound=Options)
Parts = tuple[Drafter, TreePolicy]


class LearnedByAdapters:
    """The drafter and the policy for every set of active adapters.

    The first set has the caller's own; each further one begins with a copy of what these have learned so far. What
    cannot be copied serves all adapters: drafts differ then in how good they are, the output does not.
    """

    def __init__(self) -> None:
        self._first: dict[tuple[int, int], tuple[Hashable, Parts]] = {}
        self._copies: dict[tuple[int, int, Hashable], Parts] = {}

    def of(self, options: Given, adapters: Hashable) -> Given:
        """The options, a call's too, with what has learned with these adapters, see `active_adapters`."""
        own = (options.drafter, options.policy)
        key = (id(options.drafter), id(options.policy))
        if adapters == self._first.setdefault(key, (adapters, own))[0]:  # With the parts: their ids stay theirs.
            return options
        if (*key, adapters) not in self._copies:
            self._copies[*key, adapters] = _copy(own)
        drafter, policy = self._copies[*key, adapters]
        return replace(options, drafter=drafter, policy=policy)


def _copy(parts: Parts) -> Parts:
    """A copy that shares models and what belongs to one call; the same objects where there is no way to copy them."""
    shared: list[object] = []

    class Pickler(pickle.Pickler):
        def persistent_id(self, obj: object) -> int | None:
            if not isinstance(obj, (torch.nn.Module, ModelScorer, Session, torch.Generator)) or isinstance(obj, type):
                return None
            shared.append(obj)
            return len(shared) - 1

    class Unpickler(pickle.Unpickler):
        def persistent_load(self, pid: int) -> object:
            return shared[pid]

    stream = io.BytesIO()
    try:
        Pickler(stream).dump(parts)
    except (pickle.PicklingError, TypeError, AttributeError):
        return parts
    stream.seek(0)
    return Unpickler(stream).load()
