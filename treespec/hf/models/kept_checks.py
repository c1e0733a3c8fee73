"""What the checks of a model's first use found, kept for later processes on this machine.

What is kept spares the passes that find out what counts as rounding, and whether a capability is to be tried at all; a
tree is still compared with plain passes in every process.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import transformers

from treespec.hf.introspect import ModelFacts
from treespec.hf.models.machine_key import machine_key
from treespec.hf.user_cache import cache_folder, read_kept, write_kept


def known_check(facts: ModelFacts, what: str, names: Sequence[str]) -> list[float] | None:
    """The numbers that `keep_check` kept of such a model; None: nothing, or it may not hold for this one."""
    if not _can_be_known(facts):
        return None
    return read_kept(_path(facts, what), lambda data: [float(data[name]) for name in names], "")


def keep_check(facts: ModelFacts, what: str, **found: float) -> None:
    """Keep numbers where they hold for other objects of the same kind."""
    if _can_be_known(facts):
        write_kept(_path(facts, what), found)


def _can_be_known(facts: ModelFacts) -> bool:
    """Hooks are not distinguished by their names, and processes that run a model together must make the same passes."""
    return not facts.hooks and facts.ranks.size == 1 and facts.forward is facts.model


def _path(facts: ModelFacts, what: str) -> Path:
    model = facts.model
    config = {name: value for name, value in model.config.to_dict().items() if name != "_name_or_path"}
    about = [
        what,
        machine_key(facts),
        f"{type(model).__module__}.{type(model).__qualname__}",
        json.dumps(config, sort_keys=True, default=str),
        transformers.__version__,
        str(model.config._attn_implementation),
        str(facts.adapters),
    ]
    return cache_folder() / "checks" / f"{hashlib.sha256(json.dumps(about).encode()).hexdigest()[:16]}.json"
