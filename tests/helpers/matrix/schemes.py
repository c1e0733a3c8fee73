"""How a causal model in a folder is loaded with each kind of weights: `SCHEMES`, by name.

A scheme whose package is not installed is skipped by name; what a package itself refuses is a result.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForSeq2SeqLM,
    PreTrainedModel,
)

from treespec import optimize

GROUP_SIZE = 32
"""The group size of schemes that round in groups: divides the widths of small models."""

Load = Callable[[Path], PreTrainedModel]


@dataclass(frozen=True)
class Scheme:
    """One way to load a model's weights; `packages` are the modules that it imports besides torch and transformers."""

    load: Load
    packages: tuple[str, ...] = ()

    @property
    def missing(self) -> list[str]:
        return [name for name in self.packages if not _is_installed(name)]


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # The package above it.
        return False


def _loaded(folder: Path, dtype: torch.dtype = torch.float32, **options: Any) -> PreTrainedModel:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = auto_class(AutoConfig.from_pretrained(folder)).from_pretrained(folder, dtype=dtype, **options)
    return model.eval()


def auto_class(config: Any) -> Any:
    """Which of transformers' classes loads such a model."""
    if config.is_encoder_decoder:
        return AutoModelForSeq2SeqLM
    return AutoModelForImageTextToText if hasattr(config, "vision_config") else AutoModelForCausalLM


def _torchao(folder: Path, name: str, dtype: torch.dtype = torch.float32, **options: Any) -> PreTrainedModel:
    """A configuration of torchao by its name; of its options the callables are called, when torchao is there."""
    from torchao import quantization  # pyright: ignore[reportMissingImports]
    from transformers import TorchAoConfig

    given = {key: value(quantization) if callable(value) else value for key, value in options.items()}
    config = getattr(quantization, name)(**given)
    return _loaded(folder, dtype, quantization_config=TorchAoConfig(config))


def _transformers(folder: Path, name: str, dtype: torch.dtype = torch.float32, **options: Any) -> PreTrainedModel:
    """A configuration of transformers by its name."""
    import transformers

    return _loaded(folder, dtype, quantization_config=getattr(transformers, name)(**options), device_map="cpu")


def _pytorch_int8(folder: Path) -> PreTrainedModel:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.ao.quantization.quantize_dynamic(_loaded(folder), {torch.nn.Linear}, dtype=torch.qint8)


def _optimized(folder: Path, dtype: torch.dtype | None = None, own: torch.dtype = torch.float32) -> PreTrainedModel:
    model = _loaded(folder, own)
    optimize(model, dtype=dtype)
    return model


def _hqq(folder: Path, nbits: int) -> PreTrainedModel:
    """By HQQ itself: transformers 5.23 says that its own way of loading is not available yet."""
    from hqq.core.quantize import BaseQuantizeConfig  # pyright: ignore[reportMissingImports]
    from hqq.models.hf.base import AutoHQQHFModel  # pyright: ignore[reportMissingImports]

    model = _loaded(folder)
    config = BaseQuantizeConfig(nbits=nbits, group_size=GROUP_SIZE, axis=1)
    AutoHQQHFModel.quantize_model(model, quant_config=config, compute_dtype=torch.float32, device="cpu")
    return model.eval()


def _compressed_tensors(folder: Path, preset: str) -> PreTrainedModel:
    """As from such a checkpoint: its weights are rounded once, here, and its activations in every pass, per token."""
    from compressed_tensors import quantization  # pyright: ignore[reportMissingImports]
    from compressed_tensors.quantization.utils import calculate_qparams  # pyright: ignore[reportMissingImports]

    model: Any = _loaded(folder)
    scheme = quantization.preset_name_to_scheme(preset, ["Linear"])
    config = quantization.QuantizationConfig(config_groups={"all": scheme}, ignore=["lm_head"])
    quantization.apply_quantization_config(model, config, show_progress=False)
    for layer in model.modules():
        if getattr(layer, "quantization_scheme", None) is not None:
            weight = layer.weight.data
            scale, _ = calculate_qparams(weight.amin(-1, keepdim=True), weight.amax(-1, keepdim=True), scheme.weights)
            layer.weight.data = quantization.fake_quantize(weight, scale, None, scheme.weights)
            layer.quantization_status = quantization.QuantizationStatus.COMPRESSED
    return model


def _per_group(quantization: Any) -> Any:
    return quantization.PerGroup(GROUP_SIZE)


def _per_row(quantization: Any) -> Any:
    return quantization.PerRow()


def torchao(name: str, **options: Any) -> Scheme:
    return Scheme(partial(_torchao, name=name, **options), ("torchao",))


def compressed_tensors(preset: str) -> Scheme:
    return Scheme(partial(_compressed_tensors, preset=preset), ("compressed_tensors",))


_INT4 = {"weight_dtype": torch.int4}  # pyright: ignore[reportAttributeAccessIssue]
_FLOAT8 = "Float8DynamicActivationFloat8WeightConfig"
_NF4 = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_compute_dtype": torch.float32}

SCHEMES: dict[str, Scheme] = {
    "float32": Scheme(_loaded),
    "float16": Scheme(partial(_loaded, dtype=torch.float16)),
    "bfloat16": Scheme(partial(_loaded, dtype=torch.bfloat16)),
    "bfloat16, treespec.optimize": Scheme(partial(_optimized, own=torch.bfloat16)),
    "treespec.optimize, bfloat16": Scheme(partial(_optimized, dtype=torch.bfloat16)),
    "treespec.optimize, int8": Scheme(partial(_optimized, dtype=torch.int8)),
    "PyTorch dynamic int8": Scheme(_pytorch_int8),
    "torchao int8 weights": torchao("Int8WeightOnlyConfig"),
    "torchao int8 weights, int8 per token": torchao("Int8DynamicActivationInt8WeightConfig"),
    "torchao int4 weights": torchao("IntxWeightOnlyConfig", granularity=_per_group, **_INT4),
    "torchao int4 weights, int8 per token": torchao(
        "Int8DynamicActivationIntxWeightConfig", weight_granularity=_per_group, **_INT4
    ),
    "torchao fp8 weights": torchao("Float8WeightOnlyConfig"),
    "torchao fp8, fp8 per token": torchao(_FLOAT8, dtype=torch.bfloat16, granularity=_per_row),
    "compressed-tensors int8, int8 per token": compressed_tensors("INT8"),
    "compressed-tensors fp8, fp8 per token": compressed_tensors("FP8_DYNAMIC"),
    "HQQ 4 bits": Scheme(partial(_hqq, nbits=4), ("hqq",)),
    "bitsandbytes int8": Scheme(
        partial(_transformers, name="BitsAndBytesConfig", load_in_8bit=True), ("bitsandbytes",)
    ),
    "bitsandbytes nf4": Scheme(partial(_transformers, name="BitsAndBytesConfig", **_NF4), ("bitsandbytes",)),
    "quanto int8": Scheme(partial(_transformers, name="QuantoConfig", weights="int8"), ("optimum.quanto",)),
    "quanto int4": Scheme(partial(_transformers, name="QuantoConfig", weights="int4"), ("optimum.quanto",)),
}
