"""Settings in files: which drafters, tree and rule were found to be best for a model, and what was measured."""

import hashlib
import json
import os
import re
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self
from weakref import WeakKeyDictionary

import torch
from transformers import PreTrainedModel

from treespec.checks import check_count
from treespec.cpu.linear_kernels import has_fast_linears
from treespec.data.tensor_file import whole
from treespec.drafters import Merge
from treespec.drafters.registry import DRAFTERS
from treespec.errors import ConfigError, InvalidTreeError, TreespecError, TreespecWarning
from treespec.hf.generation.speculation import TreeSpeculation
from treespec.hf.introspect import check_model
from treespec.hf.loading.as_drafter import as_drafter
from treespec.hf.machine import processor
from treespec.lab.named import LOOKUPS, named_drafters
from treespec.lab.rules import rule_name
from treespec.policies import BestFirst, Chain, Control, Paths
from treespec.policies.best_first import tree_of
from treespec.protocols import TreePolicy
from treespec.verification import get_rule

FORMAT, VERSION = "treespec setting", 1
PLAIN, AUTO = "plain", "auto"
_names: WeakKeyDictionary[TreeSpeculation, tuple[str, ...]] = WeakKeyDictionary()
"""The drafters' names of what `load_setting` returned, which `save_setting` writes again."""


@dataclass(frozen=True)
class Setting:
    """A way to decode, as `treespec tune` recommends it and `load_setting` reads it.

    Args:
        drafters: names, see `named_drafters`.
        tree: "auto", "plain", "chain of 4", "tree of 8", "tree of 8, depth 3", or rank paths such as "[(0,), (1,)]".
        rule: "auto" or a verification rule's name.
        max_nodes, max_latency_ms: limits of "auto", see `Control`.
        merge_nodes: the `num_nodes` of the drafters' `Merge`.
        model: the target's name.
        sizes: see `model_sizes`; a setting is for models of these sizes.
        machine: see `machine_facts`; empty: nothing was measured.
        measured: the candidates with their numbers, and the load; for readers.

    Raises:
        ConfigError: no drafter, an unknown rule, a limit out of range.
        InvalidTreeError: an unknown tree.
    """

    drafters: tuple[str, ...]
    tree: str = AUTO
    rule: str = "auto"
    max_nodes: int | None = None
    max_latency_ms: float | None = None
    merge_nodes: int | None = None
    model: str = ""
    sizes: Mapping[str, int] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)
    measured: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_names(self.drafters)
        if self.merge_nodes is not None:
            check_count("merge_nodes", self.merge_nodes)
        for name in ("sizes", "machine", "measured"):
            if not isinstance(getattr(self, name), Mapping):
                raise ConfigError(f"{name} must be a mapping, got {getattr(self, name)!r}")
        self.policy()
        if self.rule != "auto":
            get_rule(self.rule)

    @property
    def name(self) -> str:
        """Drafters, tree and rule in words."""
        rule = "" if self.rule == "auto" else f", rule {self.rule}"
        return f"{' + '.join(self.drafters)}: {self.tree}{rule}"

    def policy(self) -> TreePolicy:
        """A new policy of this tree."""
        return tree_policy(self.tree, self.max_nodes, self.max_latency_ms)

    def merged(self, drafters: Sequence[Any]) -> Any:
        """The loaded drafters for `TreeSpeculation`. Raises `ConfigError`: a limit of merged trees, and one drafter."""
        return drafters if self.merge_nodes is None else Merge([*map(as_drafter, drafters)], self.merge_nodes)

    def as_dict(self) -> dict[str, Any]:
        """The setting as the file's data."""
        return {"format": FORMAT, "version": VERSION, **asdict(self)}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file, whole or not at all. Raises `OSError`: it cannot be written."""
        with whole(Path(path)) as scratch:
            scratch.write_text(json.dumps(self.as_dict(), indent=1) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Raises `ConfigError`: there is no such file, or it is not a setting file of this version."""
        try:
            data: Any = json.loads(Path(path).read_text())
        except (OSError, ValueError) as error:
            raise ConfigError(f"{os.fspath(path)} must be a setting that treespec tune wrote: {error}") from error
        if not isinstance(data, dict) or data.pop("format", None) != FORMAT:
            raise ConfigError(f"{os.fspath(path)} is not a setting file: treespec tune --out FILE writes one")
        if (version := data.pop("version", None)) != VERSION:
            raise ConfigError(f"{os.fspath(path)} has version {version!r}, this treespec reads {VERSION}: tune again")
        try:
            data["drafters"] = _check_names(data["drafters"])
            return cls(**data)
        except (TypeError, KeyError, TreespecError) as error:
            raise ConfigError(f"{os.fspath(path)} is damaged: {error}") from error

    def check_fits(self, model: PreTrainedModel) -> None:
        """Raise `ConfigError` for a model of other sizes; warn where it was measured on another machine."""
        found = model_sizes(model)
        if self.sizes and dict(self.sizes) != found:
            raise ConfigError(
                f"the setting is for {self.model} with {_listed(self.sizes)}, this model has {_listed(found)}: "
                "run treespec tune for this model"
            )
        here = machine_facts(model)
        known = {name: value for name, value in self.machine.items() if name in here}
        different = [f"{name} {value}, here {here[name]}" for name, value in known.items() if value != here[name]]
        if different:
            message = f"the setting was measured elsewhere ({'; '.join(different)}): run treespec tune here"
            warnings.warn(message, TreespecWarning, stacklevel=3)


def _check_names(names: Any) -> tuple[str, ...]:
    """Raises `ConfigError`: no list of names; a str would be one of letters."""
    if isinstance(names, str) or not names or not all(isinstance(name, str) and name for name in names):
        raise ConfigError(f"drafters must be a list of names such as {list(LOOKUPS)}, got {names!r}")
    return tuple(names)


def tree_policy(tree: str, max_nodes: int | None = None, max_latency_ms: float | None = None) -> TreePolicy:
    """The policy that a setting's `tree` is the name of; its limits are for "auto".

    Raises:
        InvalidTreeError: an unknown name.
        ConfigError: a number out of range.
    """
    if tree == AUTO:
        return Control(max_nodes, max_latency_ms)
    if tree == PLAIN:
        return Control(1, pass_ms={1: 1.0})  # It predicts nothing: no pass has to be measured.
    match = re.fullmatch(r"(chain|tree) of (\d+)(?:, depth (\d+))?", str(tree))
    if match and match[1] == "chain":
        return Chain(int(match[2]))
    if match:
        return tree_of(int(match[2]), None if match[3] is None else int(match[3]))
    try:
        return Paths(tree)
    except InvalidTreeError as error:
        known = "auto, plain, chain of 4, tree of 8, tree of 8, depth 3, or rank paths such as [(0,), (1,)]"
        raise InvalidTreeError(f"a tree must be {known}; got {tree!r}: {error}") from error


def tree_name(policy: Any) -> dict[str, Any]:
    """A policy as fields of a `Setting`. Raises `ConfigError`: a setting cannot describe it."""
    found: dict[str, Any] = {"tree": str(list(policy.paths))} if type(policy) is Paths else {}
    if repr(policy) == repr(tree_policy(PLAIN)):
        found = {"tree": PLAIN}
    elif isinstance(policy, Control):
        found = {"tree": AUTO, "max_nodes": policy.given_max_nodes, "max_latency_ms": policy.max_latency_ms}
    elif isinstance(policy, Chain):
        found = {"tree": f"chain of {policy.k}"}
    elif isinstance(policy, BestFirst):
        found = {"tree": f"tree of {policy.num_nodes}" + (f", depth {policy.depth}" if policy.depth else "")}
    if not found or repr(tree_policy(**found)) != repr(policy):
        raise ConfigError(
            f"a setting cannot describe the tree {policy!r}: it knows auto, chains, budgets of nodes, and rank paths"
        )
    return found


def drafter_names(drafter: Any) -> tuple[str, ...]:
    """The names of registered drafters with their default options, merged ones too. Raises `ConfigError`: others."""
    parts = drafter.drafters if isinstance(drafter, Merge) else [drafter]
    known = _registered()
    unknown = [part for part in parts if repr(part) not in known]
    if unknown:
        raise ConfigError(
            f"the drafter {unknown[0]!r} has no name that a file could keep: give drafters=, for instance the folder "
            "that it was loaded from"
        )
    return tuple(known[repr(part)] for part in parts)


def _registered() -> dict[str, str]:
    """The names of drafters by how they show themselves with default options, without those that cannot be made."""
    found = {}
    for name in DRAFTERS:
        with suppress(TypeError, TreespecError):
            found[repr(DRAFTERS[name]())] = name
    return found


def model_sizes(model: PreTrainedModel) -> dict[str, int]:
    """The sizes by which a setting recognises its model."""
    check_model(model)
    config = model.config.get_text_config()
    names = ("vocab_size", "hidden_size", "num_hidden_layers")
    return {name: int(getattr(config, name)) for name in names if getattr(config, name, None) is not None}


def machine_facts(model: PreTrainedModel) -> dict[str, Any]:
    """Facts that a measurement depends on in addition to the model's sizes."""
    return {
        "device": model.device.type,
        "dtype": str(model.dtype).removeprefix("torch."),
        "linear layers": "replaced" if has_fast_linears(model) else "plain",
        "threads": torch.get_num_threads(),
        "processor": hashlib.sha256(processor().encode()).hexdigest()[:16],
    }


def _listed(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {size}" for name, size in sizes.items())


def load_setting(path: str | os.PathLike[str], model: PreTrainedModel, **options: Any) -> TreeSpeculation:
    """Speculation by a setting that `treespec tune` or `save_setting` wrote.

    Args:
        path: the file.
        model: the target; the setting's drafters are loaded for it.
        options: arguments of `TreeSpeculation` but drafter, tree and verification; its `tokenizer` serves drafters that
            need the target's, too.

    Raises:
        ConfigError: no such file, no setting, one for a model of other sizes, or an option that it contains.
        CheckpointError: a drafter that it names cannot be loaded.
    """
    setting = Setting.load(path)
    if given := {"drafter", "tree", "verification"} & options.keys():
        raise ConfigError(f"{os.fspath(path)} contains {' and '.join(sorted(given))}: leave it out")
    setting.check_fits(model)
    drafters = named_drafters(setting.drafters, model, options.get("tokenizer"), setting.model)
    options |= {"tree": setting.policy(), "verification": setting.rule}
    speculation = TreeSpeculation(setting.merged(drafters), **options)
    _names[speculation] = setting.drafters
    return speculation


def save_setting(
    speculation: TreeSpeculation,
    path: str | os.PathLike[str],
    model: PreTrainedModel,
    *,
    drafters: Sequence[str] | None = None,
) -> None:
    """Write drafters, tree and rule as a setting for `load_setting`. What drafters have learned is not written.

    Args:
        speculation: what is described.
        path: the file, replaced as a whole.
        model: the target; the setting is for models of its sizes.
        drafters: the drafters' names, see `named_drafters`; None: those of the setting that it was loaded from, or
            those of registered drafters with their default options.

    Raises:
        ConfigError: no `TreeSpeculation`, a tree, a drafter or a rule that a file cannot describe, or names that are
            not in a list.
        OSError: the file cannot be written.
    """
    if not isinstance(speculation, TreeSpeculation):
        raise ConfigError(f"a setting describes a TreeSpeculation, got {speculation!r:.60}")
    options = speculation.options
    rule, policy = rule_name(options.verification), tree_name(options.policy)
    if rule is None:
        raise ConfigError(
            f"a setting cannot describe the rule {options.verification!r}: it keeps the name of a registered rule with "
            "the settings that this name stands for; register yours, RULES.register('mine', rule), to give it one"
        )
    if drafters is None:
        drafters = _names.get(speculation) or drafter_names(options.drafter)
    name = Path(str(model.config._name_or_path or type(model).__name__)).name
    limit = options.drafter.num_nodes if isinstance(options.drafter, Merge) else None
    names, sizes = _check_names(drafters), model_sizes(model)
    Setting(names, **policy, rule=rule, merge_nodes=limit, model=name, sizes=sizes).save(path)
