"""Rules and policies that are here for the literature. To decode, use "auto": it takes none of them.

Nothing else in the library imports this package: a rule of it is loaded when it is named, a policy when it is imported.

- `KSeq`, `OptimalTransport` and `TransportTraversal` are lossless, and accept more than recursive rejection at a
  *single* node. They cannot verify the default best-first trees, since they need widths fixed before the first draw
  (`KSeq` i.i.d. siblings, transport drafts of twenty tokens: `Truncated`). Numbers: benchmarks/results/verification/.
- `TypicalAcceptance`, `ThresholdAcceptance` and `EnsembleVerification` are *lossy*: the output no longer has the
  target's distribution. They run only when they are named.
- `StochasticBeam` samples the trees of RSD-S; `LowConfidence` and `AdaptiveChain` are the chains of transformers'
  assisted generation.
- `SpecExec` is a tree of its paper; `eagle2`, `opt_tree`, `dyspec` and `delayed_branching` are settings of treespec's
  policies.
- `optimum/`: the most that any lossless rule can accept; `textbook/`: the algorithms on plain arrays.
"""

from treespec.literature.assisted import AdaptiveChain, LowConfidence
from treespec.literature.kseq import KSeq
from treespec.literature.lossy import EnsembleVerification, ThresholdAcceptance, TypicalAcceptance
from treespec.literature.specexec import SpecExec
from treespec.literature.stochastic_beam import StochasticBeam
from treespec.literature.transport import OptimalTransport, TransportTraversal
from treespec.literature.trees import delayed_branching, dyspec, eagle2, opt_tree
from treespec.literature.truncated import Truncated

__all__ = [
    "AdaptiveChain",
    "EnsembleVerification",
    "KSeq",
    "LowConfidence",
    "OptimalTransport",
    "SpecExec",
    "StochasticBeam",
    "ThresholdAcceptance",
    "TransportTraversal",
    "Truncated",
    "TypicalAcceptance",
    "delayed_branching",
    "dyspec",
    "eagle2",
    "opt_tree",
]
