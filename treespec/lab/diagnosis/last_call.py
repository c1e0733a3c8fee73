"""The evidence of what a speculation decoded last."""

from __future__ import annotations

from treespec.errors import ConfigError
from treespec.hf.generation.speculation import TreeSpeculation
from treespec.lab.diagnosis.evidence import Evidence, of_stats, of_trace
from treespec.lab.trace.about import Tracing, about_call
from treespec.lab.trace.reader import read_trace


def evidence_of(speculation: TreeSpeculation) -> Evidence:
    """The trace's sums, where there is a trace, else those of the last call's statistics.

    Raises:
        ConfigError: nothing was decoded yet.
        TraceError: the trace is damaged or gone.
    """
    call = speculation.last_call
    if call is None:
        raise ConfigError("diagnose() needs a call to look at: decode something with this object first")
    if isinstance(call.trace, Tracing):
        return of_trace(read_trace(call.trace.file.path))
    model = call.model_ref()
    about = {} if model is None else about_call(model, call, [])
    return of_stats(speculation.stats, about, call.mask.sum(1).tolist())
