"""Stand-ins for the packages of fast kernels (fla, causal-conv1d, mamba-ssm), which count their calls.

They update in place what the packages update in place, and compute what transformers computes without them.
transformers chooses between a package and its own code while it imports a modelling file: `model_with_packages` builds
a model from a second copy of a file, imported while the stand-ins are there.
"""

import functools
import importlib.util
import sys
from collections import Counter
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from helpers.zoo import build, config_of
from transformers import PreTrainedModel
from transformers.models.kimi_linear import modeling_kimi_linear as kimi
from transformers.models.mamba import modeling_mamba as mamba
from transformers.models.mamba2 import modeling_mamba2 as mamba2
from transformers.models.qwen3_next import modeling_qwen3_next as qwen


def _delta(run):
    """Delta rules: after five inputs, options that transformers' own functions know too."""

    def rule(q, k, v, g, beta, initial_state=None, output_final_state=False, use_qk_l2norm_in_kernel=False):
        options = {"initial_state": initial_state, "output_final_state": output_final_state}
        return run(q, k, v, g, beta, **options, use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel)

    return rule


def _state_update(state, x, dt, A, B, C, D=None, z=None, dt_bias=None, dt_softplus=False):
    """One step of Mamba-2, with heads, or Mamba-1; updates `state`."""
    step = mamba2.mamba2_selective_state_update if state.ndim == 4 else mamba.mamba_selective_state_update
    return step(state, x, dt, A, B, C, D=D, z=z, dt_bias=dt_bias, dt_softplus=dt_softplus)


def _convolution(x, weight, bias=None, seq_idx=None, activation=None):
    return qwen.causal_conv1d_fn(x, weight, bias, activation)


CONTENTS: dict[str, dict[str, Callable[..., Any]]] = {
    "causal_conv1d": {"causal_conv1d_fn": _convolution, "causal_conv1d_update": qwen.causal_conv1d_update},
    "fla.ops.gated_delta_rule": {
        "chunk_gated_delta_rule": _delta(qwen.torch_chunk_gated_delta_rule),
        "fused_recurrent_gated_delta_rule": _delta(qwen.torch_recurrent_gated_delta_rule),
    },
    "fla.ops.kda": {
        "chunk_kda": _delta(kimi.chunk_kimi_delta_attention),
        "fused_recurrent_kda": _delta(kimi.recurrent_kimi_delta_attention),
    },
    "mamba_ssm.ops.selective_scan_interface": {"selective_scan_fn": mamba.mamba_selective_scan},
    "mamba_ssm.ops.triton.selective_state_update": {"selective_state_update": _state_update},
    "mamba_ssm.ops.triton.ssd_combined": {"mamba_chunk_scan_combined": mamba2.mamba2_chunk_scan},
}
"""By module, what a package has there."""


def packages(calls: Counter[str]) -> dict[str, ModuleType]:
    """Modules by name, as in `sys.modules`; their functions count their calls."""
    found: dict[str, ModuleType] = {}
    for module_name, functions in CONTENTS.items():
        names = module_name.split(".")
        for number in range(len(names)):
            name = ".".join(names[: number + 1])
            if name not in found:
                found[name] = ModuleType(name)
                found[name].__spec__ = importlib.util.spec_from_loader(name, None)
                if number:
                    setattr(found[".".join(names[:number])], names[number], found[name])
        for name, function in functions.items():
            setattr(found[module_name], name, _counting(name, function, calls))
    return found


def _counting(name: str, function: Callable[..., Any], calls: Counter[str]) -> Any:
    @functools.wraps(function)
    def counted(*args, **kwargs):
        calls[name] += 1
        return function(*args, **kwargs)

    return counted


def model_with_packages(name: str, calls: Counter[str], monkeypatch) -> PreTrainedModel:
    """The zoo's model of this name as transformers makes it where the packages are installed."""
    usual = build(name)
    file = sys.modules[type(usual).__module__]
    spec: Any = importlib.util.spec_from_file_location(f"{file.__name__}_with_packages", str(file.__file__))
    copy = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, copy)
    with monkeypatch.context() as context:
        for module_name, module in packages(calls).items():
            context.setitem(sys.modules, module_name, module)
        spec.loader.exec_module(copy)
    kind = getattr(copy, type(usual).__name__)
    options = {"attn_implementation": usual.config._attn_implementation, "dtype": torch.float32}
    model = kind._from_config(config_of(name), **options).eval()
    model.load_state_dict(usual.state_dict())
    return model
