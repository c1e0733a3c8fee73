"""One call of an object at a time, whatever the threads, and streams that end whatever happens."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from transformers.generation.streamers import BaseStreamer

from treespec.errors import ConfigError


class Turns:
    """One call at a time: other threads wait; a copy is free."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner: int | None = None

    def __enter__(self) -> None:
        if self._owner == threading.get_ident():
            raise ConfigError("this TreeSpeculation is decoding already: a call within its call needs another object")
        self._lock.acquire()
        self._owner = threading.get_ident()

    def __exit__(self, *error: object) -> None:
        self._owner = None
        self._lock.release()

    def __reduce__(self) -> tuple[type["Turns"], tuple[()]]:
        return Turns, ()


@contextmanager
def ending(streamer: BaseStreamer | None) -> Iterator[None]:
    """Ends the stream in any case: an error must not leave its reader waiting."""
    try:
        yield
    finally:
        if callable(end := getattr(streamer, "end", None)):
            end()
