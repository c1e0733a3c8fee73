"""The kinds of heads on hidden states of the target, by the names that configurations use.

A kind is one folder or file: its module, the reader of its files, its drafter, and a `HeadKind`, which `KINDS` has by
its import path; files, drafting and `from_config` ask the table and know no kind's name.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from treespec.drafters.registry import DRAFTERS
from treespec.errors import CheckpointError, ConfigError
from treespec.heads.drafting.base import HeadDrafter
from treespec.heads.files.config import ConfigReader
from treespec.heads.files.keys import KindKeys
from treespec.heads.modules.base import DraftHead
from treespec.registry import Registry


@dataclass(frozen=True)
class HeadKind:
    """One kind of head.

    Args:
        keys: of its configurations.
        is_meant: whether a configuration and tensors without a name are of this kind; the first kind that says so is
            taken.
        read_config: the head's shape from a configuration and its tensors. `CheckpointError`: a missing or wrong value,
            or a setting that is not known or not supported.
        head: makes the module from the shape, the embedding [V, H] and the target's ids int64 [W].
        drafter: makes the drafter from a head, the hidden states that it fuses and the longest text it reads.
        write_config: the keys of a head's shape and its hidden states in the speculators library's format.
    """

    keys: KindKeys
    is_meant: Callable[[ConfigReader, Mapping[str, Tensor]], bool]
    read_config: Callable[[ConfigReader, Mapping[str, Tensor]], Any]
    head: Callable[[Any, Tensor, Tensor], DraftHead[Any]]
    drafter: Callable[[Any, Sequence[int], int | None], HeadDrafter[Any]]
    write_config: Callable[[Any, Sequence[int]], dict[str, Any]]


def _checked(kind: Any) -> HeadKind:
    """A kind. Raises `ConfigError`: anything else."""
    if not isinstance(kind, HeadKind):
        raise ConfigError(f"a kind of head is a HeadKind, got {kind!r:.60}")
    return kind


KINDS: Registry[HeadKind] = Registry(
    "kind of head",
    {
        "dflash": "treespec.heads.dflash.drafter:KIND",
        "dspark": "treespec.heads.dflash.drafter:KIND",
        "dflash2": "treespec.heads.dflash.drafter:KIND",
        "eagle": "treespec.heads.eagle.drafter:KIND",
        "eagle3": "treespec.heads.eagle3.drafter:KIND",  # After these: its sign, an `fc`, they may have too.
        "peagle": "treespec.heads.peagle.drafter:KIND",
    },
    made=_checked,
)
"""The kinds and their variants by their names in the speculators library and in vLLM's configurations, one of which is
the `algorithm` of every head's shape. `KINDS.register("mine", "my_package.my_module:KIND")` adds one."""
DRAFTERS.taken |= KINDS.taken
KINDS.taken = DRAFTERS.taken


def kind_of_files(config: ConfigReader, tensors: Mapping[str, Tensor]) -> HeadKind:
    """The kind that a configuration names, or else means. Raises `CheckpointError`: none."""
    name = config.get("speculators_model_type")
    if name is not None and name not in KINDS:
        raise CheckpointError(f"{config.path.parent} holds a {name!r} speculator; {', '.join(KINDS)} are read")
    if name is not None:
        return KINDS[name]
    found = next((kind for kind in KINDS.values() if kind.is_meant(config, tensors)), None)
    if found is None:
        kinds = ", ".join(dict.fromkeys(kind.keys.name for kind in KINDS.values()))
        reason = f"no draft head of the kinds that are read ({kinds})"
        raise CheckpointError(f"{config.path.parent} holds {reason}: a whole model drafts as TreeSpeculation(model)")
    return found


def kind_of_head(head: DraftHead[Any]) -> HeadKind:
    """The kind of a module."""
    return KINDS[head.config.algorithm]
