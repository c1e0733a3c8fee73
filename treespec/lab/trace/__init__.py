"""Traces: what every step drafted, verified and took, appended to a file while decoding, read and replayed later."""

from treespec.lab.trace.file import TraceFile, read_trace
from treespec.lab.trace.graphs import to_networkx, write_graph
from treespec.lab.trace.recorder import Recorder
from treespec.lab.trace.records import FORMAT, Trace, TracedCall, TracedStep
from treespec.lab.trace.replay import Replay, replay

__all__ = [
    "FORMAT",
    "Recorder",
    "Replay",
    "Trace",
    "TraceFile",
    "TracedCall",
    "TracedStep",
    "read_trace",
    "replay",
    "to_networkx",
    "write_graph",
]
