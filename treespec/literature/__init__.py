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

from typing import TYPE_CHECKING

from treespec.registry import lazy

if TYPE_CHECKING:
    from treespec.literature.assisted import AdaptiveChain as AdaptiveChain
    from treespec.literature.assisted import LowConfidence as LowConfidence
    from treespec.literature.kseq import KSeq as KSeq
    from treespec.literature.lossy import EnsembleVerification as EnsembleVerification
    from treespec.literature.lossy import ThresholdAcceptance as ThresholdAcceptance
    from treespec.literature.lossy import TypicalAcceptance as TypicalAcceptance
    from treespec.literature.specexec import SpecExec as SpecExec
    from treespec.literature.stochastic_beam import StochasticBeam as StochasticBeam
    from treespec.literature.transport import OptimalTransport as OptimalTransport
    from treespec.literature.transport import TransportTraversal as TransportTraversal
    from treespec.literature.trees import delayed_branching as delayed_branching
    from treespec.literature.trees import dyspec as dyspec
    from treespec.literature.trees import eagle2 as eagle2
    from treespec.literature.trees import opt_tree as opt_tree
    from treespec.literature.truncated import Truncated as Truncated

__getattr__, __dir__, __all__ = lazy(__name__)
