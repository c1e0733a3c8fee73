"""`treespec chat`: a conversation whose cache is kept from turn to turn."""

import json
from time import perf_counter
from typing import Annotated, Any

import typer
from rich.console import Console
from transformers import DynamicCache

from treespec.commands.console import CONSOLE, SeedOption, ThreadsOption, use_threads
from treespec.commands.generate import (
    ColoursOption,
    LengthOption,
    TemperatureOption,
    TopPOption,
    encode,
    sampling,
    statistics_line,
    summary,
)
from treespec.commands.models import (
    ConfigOption,
    DeviceOption,
    DrafterOption,
    DtypeOption,
    Loaded,
    ModelArgument,
    PackOption,
    RuleOption,
    SettingOption,
    TreeOption,
    load,
    speculation_of,
)
from treespec.commands.stream import Stream
from treespec.errors import ConfigError
from treespec.hf import TreeSpeculation, generate
from treespec.hf.introspect import CACHE_NAME
from treespec.hf.models.capability import keeps_states

EXAMPLES = """Examples:

treespec chat --colours

treespec chat ./my-model --system "Answer in one sentence." --temperature 0.7 --drafter ./my-draft-model"""


def run(
    model: ModelArgument = None,
    system: Annotated[str | None, typer.Option(help="A system message.", show_default=False)] = None,
    max_new_tokens: LengthOption = 512,
    temperature: TemperatureOption = 0.0,
    top_p: TopPOption = 1.0,
    drafter: DrafterOption = None,
    tree: TreeOption = "auto",
    rule: RuleOption = "auto",
    speculative_config: ConfigOption = None,
    setting: SettingOption = None,
    colours: ColoursOption = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print each answer with its statistics as JSON.")] = False,
    dtype: DtypeOption = None,
    device: DeviceOption = None,
    pack: PackOption = True,
    seed: SeedOption = 0,
    threads: ThreadsOption = None,
) -> None:
    """Chat with a model. /new starts over, /quit or the end of the input ends.

    What was said stays in the cache, so that a turn reads its own message only, and the drafters learn from all turns.
    """
    use_threads(threads)
    loaded = load(model, dtype, device, is_packed=pack)
    if getattr(loaded.tokenizer, "chat_template", None) is None:
        raise ConfigError(f"the tokenizer of {loaded.name} has no chat template: use treespec generate --raw")
    speculation = speculation_of(loaded, drafter, tree, rule, speculative_config, setting, seed=seed)
    options = sampling(temperature, top_p) | {"max_new_tokens": max_new_tokens}
    talk = Conversation(loaded, speculation, options, system)
    while (message := _read()) not in (None, "/quit"):
        if message == "/new":
            talk = Conversation(loaded, speculation, options, system)
        elif message:
            text = talk.answer(message, None if as_json else Console(highlight=False), colours)
            if as_json:
                print(json.dumps({"text": text, **talk.statistics}), flush=True)


class Conversation:
    """The messages so far, and the cache of their tokens."""

    def __init__(
        self, loaded: Loaded, speculation: TreeSpeculation, options: dict[str, Any], system: str | None
    ) -> None:
        self._loaded = loaded
        self._speculation = speculation
        self._options = options
        self.messages = [] if system is None else [{"role": "system", "content": system}]
        self.num_reused = 0
        """Tokens of the last turn that came from the cache."""
        self.statistics: dict[str, Any] = {}
        """Statistics of the last turn."""
        self._ids: list[int] = []
        self._cache = DynamicCache(config=loaded.model.config.get_text_config())

    def answer(self, message: str, console: Console | None, is_coloured: bool = False) -> str:
        """Decode the answer to a message; shows text and statistics on a console."""
        self.messages.append({"role": "user", "content": message})
        inputs = encode(self._loaded, self.messages)
        self._keep_common(inputs["input_ids"][0].tolist())
        cache = {} if keeps_states(self._loaded.model) else {CACHE_NAME: self._cache}
        stream = Stream(self._loaded.tokenizer, self._speculation.drafter, console, is_coloured)
        start = perf_counter()
        streamer = {"streamer": stream}
        out: Any = generate(self._loaded.model, inputs, self._speculation, **streamer, **cache, **self._options)
        self._ids = out[0].tolist()[: self._cache.get_seq_length()]
        self.messages.append({"role": "assistant", "content": stream.text})
        self.statistics = summary(self._speculation.stats, stream, perf_counter() - start)
        if console is not None:
            CONSOLE.print(statistics_line(self.statistics), style="dim", highlight=False)
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
