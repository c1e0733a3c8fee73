"""Models and tokenizers by name: every way in which a checkpoint can be wrong ends in one clear `CheckpointError`."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.utils import logging

from treespec.errors import CheckpointError, ConfigError
from treespec.hf.loading.hub import hub_problem

# Errors of transformers for files that are missing, unreadable, of another architecture or of other shapes.
_FAILURES = (OSError, ValueError, RuntimeError, SafetensorError, StrictDataclassError)
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


def dtype_of(name: str) -> torch.dtype:
    """Raises `ConfigError`: not one of `DTYPES`."""
    if name not in DTYPES:
        raise ConfigError(f"dtype must be one of {', '.join(DTYPES)}, got {name!r}")
    return DTYPES[name]


def load_model(name: str, **model_kwargs: Any) -> PreTrainedModel:
    """A causal language model by hub name or folder, from safetensors, or from gguf where `gguf_file` names one.

    Pickles are never opened. `model_kwargs` go to `from_pretrained` (`dtype`, `device_map`, `gguf_file`, ...).

    Raises:
        CheckpointError: nothing there, a corrupt or truncated file, weights that are missing or of other shapes than
            the configuration says, or pickled weights only.
        ConfigError: `use_safetensors=False`.
    """
    if model_kwargs.get("use_safetensors") is False:
        raise ConfigError("use_safetensors=False would open pickled weights, which can run code: save as safetensors")
    is_gguf = model_kwargs.get("gguf_file") is not None
    options = model_kwargs if is_gguf else {**model_kwargs, "use_safetensors": True}
    if problem := hub_problem(str(name)):
        raise _failed("a causal language model", name, problem)
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(name, **options, output_loading_info=True)
    except torch.OutOfMemoryError:
        raise  # Out of memory says nothing about the checkpoint.
    except _FAILURES as error:
        raise _failed("a causal language model", name, error) from error
    model, report = loaded
    missing = sorted(report["missing_keys"])
    if missing:
        found = f"{len(missing)} of the model's tensors, which would be random: {', '.join(missing[:3])}, ..."
        raise CheckpointError(f"the weights in {name!r} lack {found}; download or save the model again")
    return model


def load_tokenizer(name: str) -> Any:
    """The tokenizer of a hub name or a folder. Raises `CheckpointError`: nothing there, or unreadable."""
    if problem := hub_problem(str(name)):
        raise _failed("a tokenizer", name, problem)
    try:
        return AutoTokenizer.from_pretrained(name)
    except _FAILURES as error:
        raise _failed("a tokenizer", name, error) from error


EXPECTED = {
    "a causal language model": "config.json and whole *.safetensors files; pickled weights such as pytorch_model.bin "
    "are not opened: save them again with model.save_pretrained(folder)",
    "a tokenizer": "tokenizer.json or the files of tokenizer.save_pretrained(folder)",
}


def _failed(what: str, name: str, error: Exception | str) -> CheckpointError:
    return CheckpointError(
        f"cannot load {what} from {name!r}: {' '.join(str(error).split())} "
        f"(expected a hub name, or a folder with {EXPECTED[what]})"
    )


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence loading bars and advice; errors still surface."""
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.enable_progress_bar()
        logging.set_verbosity(verbosity)
