"""Rules of the literature that are kept for comparison. To decode, use "auto": traversal or the target walk.

- `KSeq` and `OptimalTransport` are lossless, and accept more than recursive rejection at a *single* node. On whole
  trees they lose to traversal on the default best-first trees, which they cannot verify: they need widths fixed before
  the first draw (`KSeq` i.i.d. siblings, transport drafts of twenty tokens). `TransportTraversal` is transport in
  traversal's order, with the same limits. Numbers: benchmarks/results/verification/.
- `TypicalAcceptance`, `ThresholdAcceptance` and `EnsembleVerification` are *lossy*: the output no longer has the
  target's distribution. They run only when they are named.
"""
