"""Drafters for a model, looked for in the order in which they are likely to be best."""

from __future__ import annotations

import glob
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from huggingface_hub import try_to_load_from_cache
from transformers import PreTrainedModel

from treespec.data import SHIPPED_FOR
from treespec.drafters import SuffixLookup, TokenRecycling, WarmStart
from treespec.errors import TreespecError
from treespec.heads.files.checkpoint import PICKLES
from treespec.heads.files.fitting import shipped_head
from treespec.hf.introspect import num_logits
from treespec.hf.loading.formats import MTP
from treespec.hf.loading.heads import load_drafter
from treespec.hf.loading.mtp import load_mtp, num_mtp_layers, own_draft_vocab
from treespec.protocols import Drafter

KNOWN_HEADS: dict[str, list[str]] = json.loads(Path(__file__).with_name("known_heads.json").read_text())
"""Public heads by the name of their target, the likely better one first."""
MOST_SHARE = 1.0
"""A folder with more bytes of weights than this share of the model's is not read: it cannot hold a head."""
MOST_DRAFTED = 32_768
"""The tokens that MTP layers draft on a CPU at most: of a large vocabulary the output layer takes most of a pass."""
TOO_LARGE = "too large for a head; a whole model drafts as TreeSpeculation(model)"
NOT_HERE = "not on this machine: speed_up(model, is_download_allowed=True) fetches it"
CONFIG, MTP_LAYERS = "config.json", "the checkpoint's MTP layers"


@dataclass
class Found:
    """The drafters found for a model, and why others are missing.

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
    take_trained(found, model, is_download_allowed, _load)
    start = WarmStart.shipped(SHIPPED_FOR) if _is_shipped_for(name) else None
    if start is not None and start.vocab_size == model.config.get_text_config().vocab_size:
        found.drafters += start.drafters()
        found.names.append("lookups, warm from the start")
    else:
        found.drafters += [TokenRecycling(), SuffixLookup()]
        found.names.append("lookups, which learn as they go")
    return found


def take_trained(
    found: Found,
    model: PreTrainedModel,
    is_download_allowed: bool,
    load: Callable[[str | Path, PreTrainedModel], Drafter],
) -> str | Path | None:
    """Add the first trained drafter that can be loaded, and why the others are left out; returns its source.

    Acceptance on the user's texts is not known before they are decoded, so what somebody put next to the checkpoint
    for it comes before the layers that every copy of it has.
    """
    taken = None
    for what, source, obstacle in _trained_drafters(model, is_download_allowed):
        if taken is not None and obstacle != TOO_LARGE:
            obstacle = f"{found.names[0]} comes first; load_drafter({str(source)!r}, model) is for this one"
        if obstacle is None:
            try:
                found.drafters.append(load(source, model))
            except TreespecError as error:
                obstacle = str(error)
            else:
                found.names.append(what)
                taken = source
        if obstacle is not None:
            found.missing[what] = obstacle
    if not num_mtp_layers(model):
        found.missing.pop(MTP_LAYERS, None)  # Qwen3-Next's configuration does not name those that it has.
    if taken is None and str(model.config.name_or_path) not in KNOWN_HEADS:
        found.missing["a trained head"] = "none next to the checkpoint, and none is known: treespec train makes one"
    return taken


def _load(source: str | Path, model: PreTrainedModel) -> Drafter:
    """On CPUs, where the output layer takes longest, MTP layers draft the first tokens only."""
    if source != MTP:
        return load_drafter(source, model)
    if num_logits(model) <= MOST_DRAFTED or model.device.type != "cpu":
        return load_mtp(model)
    own = own_draft_vocab(model)
    return load_mtp(model, draft_vocab=MOST_DRAFTED if own is None else own[:MOST_DRAFTED])


def _trained_drafters(
    model: PreTrainedModel, is_download_allowed: bool
) -> Iterator[tuple[str, str | Path, str | None]]:
    """Trained drafters for people and for `load_drafter`, and what keeps one from being loaded."""
    name = str(model.config.name_or_path)
    for folder in _folders_next_to(Path(name)) if name else []:  # An empty path is the working folder.
        is_large = _num_bytes(folder) > MOST_SHARE * sum(weight.nbytes for weight in model.parameters())
        yield f"the head in {folder}", folder, TOO_LARGE if is_large else None
    yield MTP_LAYERS, MTP, None
    for head in KNOWN_HEADS.get(name, []):
        is_here = is_download_allowed or isinstance(try_to_load_from_cache(head, CONFIG), str)
        yield f"the head {head}", head, None if is_here else NOT_HERE
    if _is_shipped_for(name):
        yield "the head that ships with treespec", shipped_head(SHIPPED_FOR), None


def _is_shipped_for(name: str) -> bool:
    """By the beginning of the name: copies in another format are called so, and what does not fit only drafts worse."""
    return Path(name).name.lower().startswith(SHIPPED_FOR.lower())


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
