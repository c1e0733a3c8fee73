"""Drafters whose files are not those of `treespec.heads.files.kinds`, each with a reader of its own."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from transformers import PreTrainedModel
from transformers.utils import CONFIG_NAME

from treespec.drafters.registry import DRAFTERS
from treespec.errors import CheckpointError, ConfigError
from treespec.heads.files.checkpoint import MASK_EMBEDDING, PICKLES
from treespec.hf.loading.hub import hub_problem
from treespec.registry import Registry


@dataclass(frozen=True)
class Format:
    """One format of drafters.

    Args:
        is_meant: whether a folder, a file, a loaded model or the name "mtp" is of this format.
        load: the drafter from that, the target and the longest text that it reads.
    """

    is_meant: Callable[[Any], bool]
    load: Callable[[Any, PreTrainedModel, int | None], Any]


def _checked(form: Any) -> Format:
    """A format. Raises `ConfigError`: anything else."""
    if not isinstance(form, Format):
        raise ConfigError(f"a format of drafters is a Format, got {form!r:.60}")
    return form


FORMATS: Registry[Format] = Registry(
    "format of drafters",
    {
        "assistant": "treespec.hf.loading.assistant:FORMAT",
        "mtp": "treespec.hf.loading.mtp:FORMAT",
        "medusa": "treespec.hf.loading.medusa:FORMAT",
    },
    made=_checked,
)
"""Formats that `load_drafter` tries first, by the methods of configurations. `FORMATS.register("mine",
"my_package.my_module:FORMAT")` adds one."""
DRAFTERS.taken |= FORMATS.taken
FORMATS.taken = DRAFTERS.taken
SAFETENSORS = "*.safetensors*"
"""With the index of those that are in several files."""
HEAD_FILES = (CONFIG_NAME, SAFETENSORS, MASK_EMBEDDING)
MTP = "mtp"
"""The name of the target's own MTP layers in vLLM, in commands and in setting files."""


def format_of(source: Any) -> str | None:
    """The format of a folder, a name or a loaded model, by name; None: a head of `KINDS`, a whole model, or nothing.

    From the hub only the configuration is fetched: anything else may be a large model.
    """
    try:
        source = find_source(source, patterns=[CONFIG_NAME])
    except CheckpointError:
        return None
    return next((name for name, form in FORMATS.items() if form.is_meant(source)), None)


def find_source(
    name: str | Path | PreTrainedModel, patterns: Sequence[str] = HEAD_FILES
) -> Path | PreTrainedModel | str:
    """A loaded model, "mtp", a file, a folder, or that of a hub repository; see `find_folder`."""
    return name if isinstance(name, PreTrainedModel) or name == MTP else find_folder(name, patterns)


def find_folder(name: str | Path, patterns: Sequence[str] = HEAD_FILES) -> Path:
    """A folder, or that of a hub repository's files of these patterns; pickled weights where safetensors are missing.

    Raises `CheckpointError`: nothing there.
    """
    if Path(name).exists():
        return Path(name)
    if problem := hub_problem(str(name)):
        raise CheckpointError(f"cannot load a draft head from {str(name)!r}: {problem}")
    try:
        folder = snapshot_download(str(name), allow_patterns=list(patterns))
        if SAFETENSORS in patterns and not any(Path(folder).glob("*.safetensors")):
            folder = snapshot_download(str(name), allow_patterns=[CONFIG_NAME, *(f"*{suffix}" for suffix in PICKLES)])
    except (OSError, ValueError) as error:
        reason = f"it cannot be fetched from the hub ({' '.join(str(error).split())})"
        raise CheckpointError(f"there is no folder {name}, and {reason}") from error
    return Path(folder)
