"""`treespec chat`: a conversation whose cache is kept from turn to turn."""

from time import perf_counter
from typing import Annotated, Any

import typer
from rich.console import Console
from transformers import DynamicCache

from treespec.commands.console import CONSOLE, print_json, say
from treespec.commands.generate import statistics_line, summary
from treespec.commands.models import Loaded
from treespec.commands.options import (
    ColoursOption,
    Drafting,
    JsonOption,
    LengthOption,
    ModelOptions,
    Sampling,
    TreeOption,
    with_groups,
)
from treespec.commands.stream import Stream
from treespec.errors import ConfigError
from treespec.hf import TreeSpeculation, generate
from treespec.hf.introspect import CACHE_NAME
from treespec.hf.models.capability import keeps_states

EXAMPLES = """Examples:

treespec chat --colours

treespec chat ./my-model --system "Answer in one sentence." --temperature 0.7 --drafter ./my-draft-model"""


@with_groups
def run(
    model: ModelOptions,
    sampling: Sampling,
    drafting: Drafting,
    tree: TreeOption = "auto",
    system: Annotated[str | None, typer.Option(help="A system message.", show_default=False)] = None,
    max_new_tokens: LengthOption = 512,
    colours: ColoursOption = False,
    as_json: JsonOption = False,
) -> None:
    """Chat with a model. /new starts over, /quit or the end of the input ends.

    What was said stays in the cache, so that a turn reads its own message only, and the drafters learn from all turns.
    """
    loaded = model.load()
    if getattr(loaded.tokenizer, "chat_template", None) is None:
        raise ConfigError(f"the tokenizer of {loaded.name} has no chat template: use treespec generate --raw")
    speculation = drafting.speculation(loaded, tree, seed=model.seed)
    options = {**sampling.arguments, "max_new_tokens": max_new_tokens}
    talk = Conversation(loaded, speculation, options, system)
    while (message := _read()) not in (None, "/quit"):
        if message == "/new":
            talk = Conversation(loaded, speculation, options, system)
        elif message:
            text = talk.answer(message, None if as_json else Console(highlight=False), colours)
            if as_json:
                print_json({"text": text, **talk.statistics}, indent=None)


class Conversation:
    """The messages so far, and the cache of their tokens.

    `num_reused`: tokens of the last turn that came from the cache; `statistics`: of the last turn.
    """

    def __init__(
        self, loaded: Loaded, speculation: TreeSpeculation, options: dict[str, Any], system: str | None
    ) -> None:
        self._loaded, self._speculation, self._options = loaded, speculation, options
        self.messages = [] if system is None else [{"role": "system", "content": system}]
        self.num_reused = 0
        self.statistics: dict[str, Any] = {}
        self._ids: list[int] = []
        self._cache = DynamicCache(config=loaded.model.config.get_text_config())

    def answer(self, message: str, console: Console | None, is_coloured: bool = False) -> str:
        """Decode the answer to a message; shows text and statistics on a console."""
        self.messages.append({"role": "user", "content": message})
        inputs = self._loaded.encode(self.messages)
        self._keep_common(inputs["input_ids"][0].tolist())
        stream = Stream(self._loaded.tokenizer, self._speculation.drafter, console, is_coloured)
        options: dict[str, Any] = {"streamer": stream, **self._options}
        if not keeps_states(self._loaded.model):
            options[CACHE_NAME] = self._cache
        start = perf_counter()
        out: Any = generate(self._loaded.model, inputs, self._speculation, **options)
        self._ids = out[0].tolist()[: self._cache.get_seq_length()]
        self.messages.append({"role": "assistant", "content": stream.text})
        self.statistics = summary(self._speculation.stats, stream, perf_counter() - start)
        if console is not None:
            say(statistics_line(self.statistics), style="dim")
        return stream.text

    def _keep_common(self, ids: list[int]) -> None:
        """Cut the cache to the tokens that the new prompt begins with, but for its last one."""
        is_same = [old == new for old, new in zip(self._ids, ids[:-1], strict=False)]
        self.num_reused = [*is_same, False].index(False)
        num_dropped = self._cache.get_seq_length() - self.num_reused
        if num_dropped:
            self._cache.crop(-num_dropped)  # Speculation returns caches that keep all tokens, of windowed layers too.


def _read() -> str | None:
    """A line of the standard input, None at its end."""
    try:
        return CONSOLE.input("[bold]> [/]").strip()
    except EOFError:
        return None
