"""Rules of the literature that are kept for comparison. To decode, use "auto": traversal or the target walk.

- `KSeq`, `OptimalTransport` and `TransportTraversal` are lossless, and accept more than recursive rejection at a
  *single* node. They cannot verify the default best-first trees, since they need widths fixed before the first draw
  (`KSeq` i.i.d. siblings, transport drafts of twenty tokens). Numbers: benchmarks/results/verification/.
- `TypicalAcceptance`, `ThresholdAcceptance` and `EnsembleVerification` are *lossy*: the output no longer has the
  target's distribution. They run only when they are named.
"""
