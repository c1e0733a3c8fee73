"""A step's trees as sequences of the paged cache, planned with NumPy alone.

A tree in depth-first order is cut into segments, runs of nodes each of which is the child of the one before it. The
first segment of a tree continues the request's own sequence. Every other one is a sequence of its own for the attention
backend: the request's block table, except that from the root's block on there are scratch blocks. These get a copy of
the root's block, once more the keys and values of the segment's ancestors, and the segment's own. If the accepted path
ends in such a segment, its scratch blocks are copied over the request's.

Axis letters: J segments, X scratch blocks.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from treespec.tree import PADDING_PARENT, ROOT_PARENT

Ids = np.ndarray
"""int64."""


@dataclass(frozen=True)
class StepTrees:
    """The trees of one step's B requests, depth first, and where they are; all int64.

    `parents` [B, N] as in `TreeBatch`. `first_tokens` and `roots` [B] are columns of the flat
    batch of tokens: where a request's tokens begin, and its root (the same but in a chunk of a prompt). `positions` [B]
    are the roots' positions in the text, `num_drafts` [B] how many tokens follow the roots in the flat batch.
    """

    parents: Ids
    depths: Ids
    first_tokens: Ids
    roots: Ids
    positions: Ids
    num_drafts: Ids


@dataclass(frozen=True)
class SegmentPlan:
    """The attention backend's plan for one step's segments; all int64. "Token" is a column of the flat batch.

    `requests`, `first_tokens`, `lengths` [J]: of every segment the request, its first token and the length of its
    sequence. `table` [3, X]: segment, column of its block table, scratch block. `block_copies` [2, M]: from a block, to
    a scratch block. `rewrites` [2, M]: a token, and the slot where its key and value are written once more. `moves`
    [3, M]: a token, its position, and its slot in place of vLLM's.
    """

    requests: Ids
    first_tokens: Ids
    lengths: Ids
    table: Ids
    block_copies: Ids
    rewrites: Ids
    moves: Ids
    _nodes: "_Nodes"
    _segments: "_Segments"
    _blocks: Ids

    @property
    def has_segments(self) -> bool:
        """False where every request is one sequence, as in vLLM itself."""
        return self.table.shape[1] > 0

    def copies_home(self, last_nodes: Int[Ids, "B"], block_table: Ids) -> Ids:
        """Block copies [2, M] that bring the accepted paths, which end in `last_nodes`, to the requests' own blocks."""
        nodes, segments = self._nodes, self._segments
        last = nodes.starts + last_nodes
        segment = nodes.segments[last]
        is_scratch = segments.is_scratch[segment]
        rows, segment, last = np.flatnonzero(is_scratch), segment[is_scratch], last[is_scratch]
        counts = nodes.positions[last] // nodes.block_size - nodes.first_columns[rows] + 1  # Blocks from the root's on.
        number = ranges(counts)
        rows = np.repeat(rows, counts)
        source = self._blocks[np.repeat(segments.block_starts[segment], counts) + number]
        return np.stack([source, block_table[rows, nodes.first_columns[rows] + number].astype(np.int64)])


@dataclass(frozen=True)
class _Nodes:
    """The real nodes of a step, row by row: their order is the planned number. `starts` [B] is a row's first one.

    `parents` are planned numbers too, -1 for a root.
    """

    rows: Ids
    starts: Ids
    parents: Ids
    tokens: Ids
    positions: Ids
    segments: Ids
    first_columns: Ids
    block_size: int


@dataclass(frozen=True)
class _Segments:
    """First and last node, request, whether it is in scratch blocks, how many and from which one on."""

    first: Ids
    last: Ids
    rows: Ids
    is_scratch: Ids
    num_blocks: Ids
    block_starts: Ids


def scratch_blocks(parents: Ids, depths: Ids, positions: Ids, block_size: int) -> Ids:
    """The scratch blocks that each tree will take when its root is at `positions` [B], int64 [B]; see `StepTrees`."""
    nothing = np.zeros_like(positions)
    _, segments = _cut(StepTrees(parents, depths, nothing, nothing, positions, nothing), block_size)
    return np.bincount(segments.rows, segments.num_blocks, len(parents)).astype(np.int64)


def without_room(needed: Int[Ids, "B"], num_free: int) -> np.ndarray:
    """Which trees have to become chains, bool [B]: as few as possible, so that all others find their scratch blocks.

    The choice may depend on the trees' shapes only where all children were selected. With sampled children, whose
    tokens decide the shapes, `needed` has to be what the worst shape takes.
    """
    order = np.argsort(needed, kind="stable")
    is_cut = np.empty(len(needed), dtype=bool)
    is_cut[order] = (np.cumsum(needed[order]) > num_free) & (needed[order] > 0)  # Chains need none.
    return is_cut


def plan_segments(trees: StepTrees, block_table: Ids, block_size: int, free: Ids) -> SegmentPlan:
    """The plan. `block_table` [B, columns] holds the requests' own blocks, `free` [X] are scratch blocks, enough of
    them: see `scratch_blocks`."""
    nodes, segments = _cut(trees, block_size)
    assert segments.num_blocks.sum() <= len(free), "trees are cut before they are drafts"
    return _plan(trees, nodes, segments, block_table, free)


def ranges(counts: Ids) -> Ids:
    """0 to count - 1 for every count, one after the other."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


def _cut(trees: StepTrees, block_size: int) -> tuple[_Nodes, _Segments]:
    rows, columns = np.nonzero(trees.parents != PADDING_PARENT)
    starts = np.searchsorted(rows, np.arange(len(trees.parents)))
    parents = trees.parents[rows, columns]
    is_first = parents != columns - 1
    is_first[starts] = True  # A root's parent, -1, is its column less one too.
    first = np.flatnonzero(is_first)
    last = np.append(first[1:], len(rows)) - 1
    positions = trees.positions[rows] + trees.depths[rows, columns]
    first_columns = trees.positions // block_size
    is_scratch = columns[first] > 0
    num_blocks = np.where(is_scratch, positions[last] // block_size - first_columns[rows[first]] + 1, 0)
    nodes = _Nodes(
        rows=rows,
        starts=starts,
        parents=np.where(parents >= 0, starts[rows] + parents, ROOT_PARENT),
        tokens=trees.roots[rows] + columns,
        positions=positions,
        segments=np.cumsum(is_first) - 1,
        first_columns=first_columns,
        block_size=block_size,
    )
    block_starts = np.cumsum(num_blocks) - num_blocks
    return nodes, _Segments(first, last, rows[first], is_scratch, num_blocks, block_starts)


def _plan(trees: StepTrees, nodes: _Nodes, segments: _Segments, block_table: Ids, free: Ids) -> SegmentPlan:
    size, scratch = nodes.block_size, np.flatnonzero(segments.is_scratch)
    blocks = free[: int(segments.num_blocks.sum())]
    # A request of one sequence keeps all its tokens, including those of drafts outside its tree.
    whole = trees.positions[segments.rows] + trees.num_drafts[segments.rows] + 1
    is_alone = np.bincount(segments.rows)[segments.rows] == 1
    lengths = np.where(is_alone, whole, nodes.positions[segments.last] + 1)

    def slots(node: Ids, segment: Ids) -> Ids:
        column = nodes.positions[node] // size - nodes.first_columns[nodes.rows[node]]
        return blocks[segments.block_starts[segment] + column] * size + nodes.positions[node] % size

    owners = np.repeat(scratch, segments.num_blocks[scratch])
    columns = ranges(segments.num_blocks[scratch])
    is_inside = trees.positions[segments.rows[scratch]] % size > 0  # Else the root begins its block: nothing to copy.
    copied = scratch[is_inside]
    rows = segments.rows[copied]
    ancestor, segment = _ancestors(nodes, segments, scratch)
    moved = np.flatnonzero(segments.is_scratch[nodes.segments])
    return SegmentPlan(
        requests=segments.rows,
        first_tokens=np.where(segments.is_scratch, nodes.tokens[segments.first], trees.first_tokens[segments.rows]),
        lengths=lengths,
        table=np.stack([owners, nodes.first_columns[segments.rows[owners]] + columns, blocks]),
        block_copies=np.stack(
            [block_table[rows, nodes.first_columns[rows]].astype(np.int64), blocks[segments.block_starts[copied]]]
        ),
        rewrites=np.stack([nodes.tokens[ancestor], slots(ancestor, segment)]),
        moves=np.stack([nodes.tokens[moved], nodes.positions[moved], slots(moved, nodes.segments[moved])]),
        _nodes=nodes,
        _segments=segments,
        _blocks=blocks,
    )


def _ancestors(nodes: _Nodes, segments: _Segments, scratch: Ids) -> tuple[Ids, Ids]:
    """The nodes above every scratch segment, up to the root, and the segment that each stands for."""
    node, segment = nodes.parents[segments.first[scratch]], scratch
    found: list[tuple[Ids, Ids]] = [(node[:0], segment[:0])]
    while len(node):
        found.append((node, segment))
        node = nodes.parents[node]
        node, segment = node[node >= 0], segment[node >= 0]
    above, owners = zip(*found, strict=True)
    return np.concatenate(above), np.concatenate(owners)
