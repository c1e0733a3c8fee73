"""Drafters' files, which vLLM's own functions fetch and read as the engine's `LoadConfig` says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import Tensor

from treespec.errors import CheckpointError
from treespec.heads.files.checkpoint import Checkpoint, check_weights, read_checkpoint
from treespec.heads.files.config import read_config
from treespec.heads.files.unserved import refuse_unserved

READ = ("hf", "safetensors", "fastsafetensors", "instanttensor")
"""Load formats that say how safetensors files are read; others are of the target's files, and drafters' are "auto"."""
PATTERNS = ["*.safetensors", "*.bin", "*.pt"]
"""The first of which the hub has any is fetched."""
DAMAGED = (ValueError, LookupError, TypeError, AttributeError, EOFError, SafetensorError)
"""Errors that vLLM raises for damaged files, next to those of the system and of PyTorch."""


@dataclass(frozen=True)
class Files:
    """Where drafters' files come from.

    Attributes:
        load: vLLM's `LoadConfig` of the engine.
        revision: a branch, tag or commit of the hub's repository; None: its main branch.
    """

    load: Any
    revision: str | None = None

    def find(self, name: str) -> Path:
        """A folder, or that of a repository of the hub, fetched where it is not in vLLM's `download_dir`.

        Raises `CheckpointError`: there is none.
        """
        if Path(name).is_dir():
            return Path(name)
        from vllm.model_executor.model_loader.weight_utils import download_weights_from_hf

        load = self.load
        try:
            download_weights_from_hf(name, load.download_dir, ["*.json"], self.revision)
            return Path(
                download_weights_from_hf(
                    name, load.download_dir, PATTERNS, self.revision, ignore_patterns=load.ignore_patterns
                )
            )
        except (OSError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise CheckpointError(f"{name} is not a folder and cannot be fetched from the hub ({reason})") from error

    def read(self, folder: Path) -> Checkpoint:
        """As `read_checkpoint`, with vLLM's reader of safetensors. Raises `CheckpointError`: see there."""
        if not any(folder.glob("*.safetensors")):
            return read_checkpoint(folder)
        config = read_config(folder / "config.json")
        refuse_unserved(folder, config)
        tensors: dict[str, Tensor] = {}
        for name, tensor in self._weights(folder):
            if name in tensors:
                raise CheckpointError(f"{folder} holds {name!r} twice")
            tensors[name] = tensor.cpu().contiguous()
        refuse_unserved(folder, config, tensors)
        check_weights(folder, tensors)
        return Checkpoint(folder, config, tensors)

    def _weights(self, folder: Path) -> Iterator[tuple[str, Tensor]]:
        from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

        load = self.load
        if load.load_format not in READ:
            load = replace(load, load_format="auto", model_loader_extra_config={})
        loader = DefaultModelLoader(load)
        try:
            yield from loader._get_weights_iterator(loader.Source(str(folder), None))
        except (OSError, RuntimeError, *DAMAGED) as error:
            reason = " ".join(str(error).split())
            raise CheckpointError(f"the weights in {folder} cannot be read ({reason}): are they damaged?") from error
