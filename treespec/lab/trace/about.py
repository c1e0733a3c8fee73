"""`Tracing`: what writes a call's trace, and what is known of the call in addition to its steps."""

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import torch
from transformers import PreTrainedModel

from treespec.checks import installed_versions
from treespec.errors import TreespecError
from treespec.hf.generation.call import Call
from treespec.lab.pass_times import pass_profile
from treespec.lab.rules import describe, traced_rule
from treespec.lab.trace.file import TraceFile
from treespec.lab.trace.recorder import Recorder
from treespec.policies import Control

_SAMPLING = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0}
_PENALTIES = {"repetition_penalty": 1.0, "no_repeat_ngram_size": 0}
"""Settings with the values that change nothing."""


@dataclass(frozen=True)
class Tracing:
    """Watches calls for a `TraceFile`."""

    file: TraceFile

    def observer(self, call: Call) -> Recorder | None:
        """The first of several processes records; all measure passes for it."""
        prompts = [ids[mask].tolist() for ids, mask in zip(call.input_ids, call.mask, strict=True)]
        about = about_call(call.model, call, prompts)
        if call.facts.ranks.index > 0:
            return None
        return Recorder(self.file, about, call.drafter, call.tokenizer)


def as_watcher(trace: Any) -> Tracing:
    """The `Tracing` for a `TraceFile` or the path of one. Raises `ConfigError`: anything else."""
    return Tracing(trace if isinstance(trace, TraceFile) else TraceFile(trace))


def about_call(model: PreTrainedModel, call: Call, prompts: Sequence[Sequence[int]]) -> dict[str, Any]:
    """See `TracedCall.about`; `prompts` are without padding."""
    tokenizer, config = call.tokenizer, call.config
    neutral = {"max_new_tokens": None, **(_SAMPLING if config.do_sample else {}), **_PENALTIES}
    settings = {name: getattr(config, name, None) for name in neutral}
    return {
        "model": PurePath(str(model.config._name_or_path or type(model).__name__)).name,
        "num_weights": sum(weight.numel() for weight in model.parameters()),
        "dtype": str(model.dtype).removeprefix("torch."),
        "device": str(model.device),
        "num_threads": torch.get_num_threads(),
        "drafter": describe(call.drafter),
        "policy": describe(call.policy),
        "is_auto": isinstance(call.policy, Control),
        "rule": traced_rule(call.verification),
        "is_sampling": bool(config.do_sample),
        "sampling": {k: v for k, v in settings.items() if v is not None and v != neutral[k]},
        "processors": list(call.processor_names),
        "seed": call.seed,
        "pass_ms": _pass_ms(model, call.policy),
        "versions": {**installed_versions("treespec"), "python": platform.python_version()},
        "prompt_ids": [list(ids) for ids in prompts],
        "prompt": None if tokenizer is None else [str(tokenizer.decode(list(ids))) for ids in prompts],
    }


def _pass_ms(model: PreTrainedModel, policy: Any) -> dict[str, float] | None:
    """The target's measured passes, with which a diagnosis compares; measured once per model and machine."""
    try:
        found = getattr(policy, "pass_ms", None) or pass_profile(model).pass_ms
    except TreespecError:
        return None
    return {str(nodes): float(ms) for nodes, ms in found.items()} if found else None
