"""Traces: what every step drafted, verified and took, appended to a file while decoding, read and replayed later."""

from treespec.engine.trace.file import TraceFile
from treespec.engine.trace.graphs import to_networkx, write_graph
from treespec.engine.trace.reader import read_trace
from treespec.engine.trace.recorder import Recorder
from treespec.engine.trace.records import FORMAT, Trace, TracedCall, TracedStep
from treespec.engine.trace.replay import Replay, replay

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
