"""Text on the terminal as it is decoded, accepted draft tokens in the colour of the drafter that gave them."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.text import Text
from torch import Tensor

from treespec.drafters import Merge

COLOURS = ("green", "cyan", "magenta", "yellow", "blue", "bright_red")
TARGET = "target"


class Stream:
    """A streamer that prints, if it has a console, and counts which drafter gave each token.

    A token that several drafters proposed is the first one's, in the order in which they were given.
    """

    def __init__(self, tokenizer: Any, drafter: Any, console: Console | None, is_coloured: bool = False) -> None:
        self._tokenizer, self._drafter, self.console, self._is_coloured = tokenizer, drafter, console, is_coloured
        self.counts: Counter[str] = Counter()
        self.ids: list[int] = []
        self._is_prompt = True
        self._num_shown = 0

    def put(self, value: Tensor) -> None:
        if self._is_prompt:  # The first call holds the prompt.
            self._is_prompt = False
            return
        tokens = value.flatten().tolist()
        for token, source in zip(tokens, self._sources(tokens), strict=True):
            self.ids.append(token)
            self.counts[source] += 1
            self._show(source)

    def end(self) -> None:
        self._show(TARGET, is_last=True)
        if self.console is not None:
            self.console.print()
        self._is_prompt = True

    @property
    def text(self) -> str:
        return str(self._tokenizer.decode(self.ids, skip_special_tokens=True))

    def legend(self) -> Text:
        """The drafters in their colours, with their tokens."""
        parts = [(f"{name} {count}  ", _style(name, self.counts)) for name, count in self.counts.most_common()]
        return Text.assemble("tokens by: ", *parts)

    def _sources(self, tokens: Sequence[int]) -> list[str]:
        """A pass's last token is the target's own, also where a drafter had proposed it in a node that was cut off."""
        if isinstance(self._drafter, Merge):
            names = [names[0] for names in self._drafter.proposers(0, tokens[:-1])]
        else:
            names = [type(self._drafter).__name__] * (len(tokens) - 1)
        return [*names, *[TARGET] * (len(tokens) - len(names))]

    def _show(self, source: str, is_last: bool = False) -> None:
        """Print what is new; half a character waits for its other half."""
        if self.console is None:
            return
        text = self.text
        if text.endswith("\ufffd") and not is_last:
            return
        style = _style(source, self.counts) if self._is_coloured else ""
        self.console.print(Text(text[self._num_shown :], style=style), end="", soft_wrap=True)
        self._num_shown = len(text)


def _style(name: str, counts: Counter[str]) -> str:
    names = [known for known in counts if known != TARGET]
    return "" if name == TARGET else COLOURS[names.index(name) % len(COLOURS)]
