"""The processes that run one target together and decode the same call, as the engine sees them."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol, TypeVar

Value = TypeVar("Value")


class Ranks(Protocol):
    """Processes that run one target together; values are plain Python objects."""

    @property
    def size(self) -> int:
        """How many there are."""
        ...

    @property
    def index(self) -> int:
        """Which one this process is."""
        ...

    def agree(self, what: str, value: Value) -> Value:
        """Rank 0's value, on every rank."""
        ...

    def compute(self, what: str, run: Callable[[], Value]) -> Value:
        """Rank 0's result of `run`, on every rank."""
        ...

    def check(self, what: str, value: Callable[[], object]) -> None:
        """Raise `RanksDisagreeError` unless `value()` is the same on all ranks."""
        ...

    def together(self, what: str, value: Callable[[], object]) -> AbstractContextManager[None]:
        """A block that all ranks enter with the same value; an error in it ends the others' waiting."""
        ...


class Alone:
    """One process that runs the target by itself: nobody to agree with."""

    index, size = 0, 1

    def agree(self, what: str, value: Value) -> Value:
        return value

    def compute(self, what: str, run: Callable[[], Value]) -> Value:
        return run()

    def check(self, what: str, value: Callable[[], object]) -> None:
        """Nothing to compare: the value is not asked for."""

    def together(self, what: str, value: Callable[[], object]) -> AbstractContextManager[None]:
        """A block that nobody else enters."""
        return nullcontext()
