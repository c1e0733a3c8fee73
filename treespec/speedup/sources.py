"""What can draft for a model: looked for in the order in which it is likely to be best."""

from __future__ import annotations

import glob
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from huggingface_hub import try_to_load_from_cache
from transformers import PreTrainedModel

from treespec.drafters import SuffixLookup, TokenRecycling, WarmStart
from treespec.errors import TreespecError
from treespec.heads.files.checkpoint import PICKLES
from treespec.heads.files.fitting import shipped_head
from treespec.heads.mtp.drafter import Mtp
from treespec.hf.loading.heads import load_drafter
from treespec.hf.loading.mtp import MTP, load_mtp, num_mtp_layers
from treespec.hf.loading.smollm2 import NAME as SHIPPED
from treespec.protocols import Drafter

KNOWN_HEADS: dict[str, list[str]] = json.loads(Path(__file__).with_name("known_heads.json").read_text())
"""Public heads by the name of their target, the likely better one first."""
MOST_SHARE = 1.0
"""A folder with more bytes of weights than this share of the model's is not read: it cannot hold a head."""
MOST_DRAFTED = 32_768
"""The tokens that MTP layers draft on a CPU at most: benchmarks/draft_vocabulary.py has the times."""
CONFIG, MTP_LAYERS = "config.json", "the checkpoint's MTP layers"


@dataclass
class Found:
    """What drafts, and what was looked for.

    Attributes:
        drafters: to be merged, the trained one first.
        names: theirs, for people.
        missing: why the others do not draft, by name.
    """

    drafters: list[Drafter] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)


def find_drafters(model: PreTrainedModel, is_download_allowed: bool) -> Found:
    """One trained drafter, if there is one, and lookups, which cost next to nothing."""
    found, name = Found(), str(model.config.name_or_path)
    for what, source in trained_drafters(model, is_download_allowed, found.missing):
        try:
            found.drafters.append(_mtp(model) if source == MTP else load_drafter(source, model))
        except TreespecError as error:
            found.missing[what] = str(error)
        else:
            found.names.append(what)
            break
    start = WarmStart.shipped(SHIPPED) if _is_shipped_for(name) else None
    if start is not None and start.vocab_size == model.config.get_text_config().vocab_size:
        found.drafters += start.drafters()
        found.names.append("lookups, warm from the start")
    else:
        found.drafters += [TokenRecycling(), SuffixLookup()]
        found.names.append("lookups, which learn as they go")
    return found


def _mtp(model: PreTrainedModel) -> Mtp:
    """The checkpoint's MTP layers; on CPUs, where the output layer takes longest, they draft the first tokens only."""
    drafter = load_mtp(model)
    if len(drafter.head.target_ids) <= MOST_DRAFTED or model.device.type != "cpu":
        return drafter
    return load_mtp(model, draft_vocab=MOST_DRAFTED)


def trained_drafters(
    model: PreTrainedModel, is_download_allowed: bool, missing: dict[str, str]
) -> Iterator[tuple[str, str | Path]]:
    """Trained drafters for people and for `load_drafter`; why others are left out is added to `missing`."""
    name = str(model.config.name_or_path)
    for folder in _folders_next_to(Path(name)) if name else []:  # An empty path is the working folder.
        if _num_bytes(folder) > MOST_SHARE * sum(weight.nbytes for weight in model.parameters()):
            missing[f"the head in {folder}"] = "too large for a head; a whole model drafts as TreeSpeculation(model)"
        else:
            yield f"the head in {folder}", folder
    yield MTP_LAYERS, MTP
    if not num_mtp_layers(model):
        missing.pop(MTP_LAYERS, None)  # Qwen3-Next's configuration does not name those that it has.
    known = KNOWN_HEADS.get(name, [])
    for head in known:
        if is_download_allowed or isinstance(try_to_load_from_cache(head, CONFIG), str):
            yield f"the head {head}", head
        else:
            missing[f"the head {head}"] = "not on this machine: speed_up(model, is_download_allowed=True) fetches it"
    if _is_shipped_for(name):
        yield "the head that ships with treespec", shipped_head(SHIPPED)
    elif not known:
        missing["a trained head"] = "none next to the checkpoint, and none is known: treespec train makes one"


def _is_shipped_for(name: str) -> bool:
    """By the beginning of the name: copies in another format are called so, and what does not fit only drafts worse."""
    return Path(name).name.lower().startswith(SHIPPED.lower())


def _folders_next_to(checkpoint: Path) -> list[Path]:
    """Folders with a configuration in a checkpoint's folder, or next to it under a name that begins with its own."""
    if not checkpoint.is_dir():
        return []
    checkpoint = checkpoint.resolve()
    siblings = checkpoint.parent.glob(f"{glob.escape(checkpoint.name)}[-_.]*")
    return sorted(path for path in [*checkpoint.iterdir(), *siblings] if (path / CONFIG).is_file())


def _num_bytes(folder: Path) -> int:
    """Bytes of all weights in a folder, of any format."""
    files = (file for file in folder.iterdir() if file.suffix in (".safetensors", ".gguf", *PICKLES))
    return sum(file.stat().st_size for file in files if file.is_file())
