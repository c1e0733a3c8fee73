"""Segments against a model of a paged cache, node by node: what every token sees, and what is in the cache after it."""

import numpy as np
import pytest

from treespec.vllm.pages import kept
from treespec.vllm.segments import StepTrees, plan_segments, ranges, scratch_blocks, without_room

SIZE, COLUMNS = 4, 12


def depth_first_parents(rng: np.random.Generator, num_nodes: int, chain_share: float) -> list[int]:
    """A random tree in depth-first order: a node's parent is the last node or one above it."""
    parents = [-1]
    for node in range(1, num_nodes):
        above = [node - 1]
        while above[-1] > 0 and rng.random() > chain_share:
            above.append(parents[above[-1]])
        parents.append(above[-1])
    return parents


def path_to(parents: list[int], node: int) -> list[int]:
    path = [node]
    while parents[path[-1]] >= 0:
        path.append(parents[path[-1]])
    return path[::-1]


class Batch:
    """Requests with a text in a paged cache, a random tree each, some of them a chunk of a prompt before their root."""

    def __init__(self, seed: int, num_scratch: int = 200) -> None:
        rng = np.random.default_rng(seed)
        self.trees = [depth_first_parents(rng, int(rng.integers(1, 10)), 0.6) for _ in range(5)]
        self.chunks = [int(rng.integers(0, 6)) if len(tree) == 1 else 0 for tree in self.trees]
        self.lengths = [int(rng.integers(chunk, 14)) for chunk in self.chunks]  # Tokens before the root.
        blocks = rng.permutation(5 * COLUMNS)
        self.table = blocks.reshape(5, COLUMNS)
        self.free = 5 * COLUMNS + rng.permutation(num_scratch)
        width, counts = max(map(len, self.trees)), [c + len(t) for c, t in zip(self.chunks, self.trees, strict=True)]
        parents = np.array([tree + [-2] * (width - len(tree)) for tree in self.trees])
        depths = np.array(
            [[len(path_to(t, n)) - 1 for n in range(len(t))] + [0] * (width - len(t)) for t in self.trees]
        )
        first = np.cumsum(counts) - counts
        self.num_tokens = sum(counts)
        self.step = StepTrees(
            parents,
            depths,
            first,
            first + self.chunks,
            np.array(self.lengths),
            np.array([len(t) - 1 for t in self.trees]),
        )

    def cache(self) -> dict[int, object]:
        """Contents of the slots before the pass: (request, position); the chunk is not there yet."""
        slots: dict[int, object] = {}
        for request, (length, chunk) in enumerate(zip(self.lengths, self.chunks, strict=True)):
            for position in range(length - chunk):
                slots[self.slot(request, position)] = (request, position)
        return slots

    def slot(self, request: int, position: int) -> int:
        return int(self.table[request, position // SIZE]) * SIZE + position % SIZE

    def own(self, request: int, node: int) -> tuple:
        return (request, "node", node)


def run(batch: Batch, plan) -> tuple[dict[int, object], dict[int, list[object]]]:
    """The cache after the pass, and what every token of the flat batch sees, its own entry last."""
    names, positions, slots = {}, {}, {}
    for request, (tree, chunk, length) in enumerate(zip(batch.trees, batch.chunks, batch.lengths, strict=True)):
        first = int(batch.step.first_tokens[request])
        for k in range(chunk + len(tree)):
            position = length - chunk + k
            names[first + k] = (request, position) if k < chunk else batch.own(request, k - chunk)
            positions[first + k], slots[first + k] = position, batch.slot(request, position)
    for token, position, slot in plan.moves.T.tolist():
        positions[token], slots[token] = position, slot
    cache = batch.cache()
    before = dict(cache)
    for source, target in plan.block_copies.T.tolist():
        for k in range(SIZE):
            if source * SIZE + k in before:
                cache[target * SIZE + k] = before[source * SIZE + k]
    for token, slot in plan.rewrites.T.tolist():
        cache[slot] = names[token]
    for token, slot in slots.items():
        cache[slot] = names[token]
    ends = [*plan.first_tokens.tolist()[1:], batch.num_tokens]
    seen: dict[int, list[object]] = {}
    for segment, (begin, end) in enumerate(zip(plan.first_tokens.tolist(), ends, strict=True)):
        table = batch.table[plan.requests[segment]].copy()
        for owner, column, block in plan.table.T.tolist():
            if owner == segment:
                table[column] = block
        for token in range(begin, end):
            last = int(plan.lengths[segment]) - (end - begin) + token - begin
            assert last == positions[token]
            seen[token] = [cache.get(int(table[p // SIZE]) * SIZE + p % SIZE) for p in range(last + 1)]
    return cache, seen


@pytest.mark.parametrize("seed", range(60))
def test_every_token_sees_its_path_and_nothing_else(seed: int) -> None:
    batch = Batch(seed)
    plan = plan_segments(batch.step, batch.table, SIZE, batch.free)
    _, seen = run(batch, plan)
    for request, (tree, length) in enumerate(zip(batch.trees, batch.lengths, strict=True)):
        for node in range(len(tree)):
            text = [(request, position) for position in range(length)]
            expected = text + [batch.own(request, k) for k in path_to(tree, node)]
            assert seen[int(batch.step.roots[request]) + node] == expected


@pytest.mark.parametrize("seed", range(60))
def test_the_accepted_path_is_in_the_requests_blocks_afterwards(seed: int) -> None:
    batch, rng = Batch(seed), np.random.default_rng(seed)
    plan = plan_segments(batch.step, batch.table, SIZE, batch.free)
    cache, _ = run(batch, plan)
    last = np.array([rng.integers(len(tree)) for tree in batch.trees])
    before = dict(cache)
    for source, target in plan.copies_home(last, batch.table).T.tolist():
        for k in range(SIZE):
            cache[target * SIZE + k] = before.get(source * SIZE + k)
    for request, (tree, length) in enumerate(zip(batch.trees, batch.lengths, strict=True)):
        for position in range(length):
            assert cache[batch.slot(request, position)] == (request, position)
        for depth, node in enumerate(path_to(tree, int(last[request]))):
            assert cache[batch.slot(request, length + depth)] == batch.own(request, node)


@pytest.mark.parametrize("seed", range(20))
def test_a_plan_takes_the_blocks_that_were_foreseen(seed: int) -> None:
    step = (batch := Batch(seed)).step
    needed = scratch_blocks(step.parents, step.depths, step.positions, SIZE)
    plan = plan_segments(step, batch.table, SIZE, batch.free[: needed.sum()])
    assert np.bincount(plan.requests[plan.table[0]], minlength=len(needed)).tolist() == needed.tolist()
    if needed.any():
        with pytest.raises(AssertionError, match="before they are drafts"):
            plan_segments(step, batch.table, SIZE, batch.free[: needed.sum() - 1])


@pytest.mark.parametrize("num_free", range(0, 14))
def test_as_few_trees_as_possible_become_chains(num_free: int) -> None:
    needed = np.array([5, 0, 2, 3, 2])
    is_cut = without_room(needed, num_free)
    assert needed[~is_cut].sum() <= num_free
    assert not is_cut[1]
    subsets = [[bool(number >> row & 1) for row in range(5)] for number in range(32)]
    assert is_cut.sum() == min(sum(kept) for kept in subsets if needed[~np.array(kept)].sum() <= num_free)


def test_of_equal_needs_the_first_ones_are_served() -> None:
    # Sampled children: the needs are those of the worst shape, so that nothing but the order decides.
    assert without_room(np.array([4, 0, 4, 4]), 9).tolist() == [False, False, False, True]


def test_chains_need_no_scratch_blocks() -> None:
    batch = Batch(3)
    parents = np.where(batch.step.parents >= -1, np.arange(batch.step.parents.shape[1]) - 1, -2)
    depths = np.maximum(parents + 1, 0)
    step = StepTrees(
        parents, depths, *(getattr(batch.step, n) for n in ("first_tokens", "roots", "positions", "num_drafts"))
    )
    plan = plan_segments(step, batch.table, SIZE, np.zeros(0, dtype=np.int64))
    assert not plan.has_segments
    assert len(plan.requests) == 5


def test_ranges() -> None:
    assert ranges(np.array([2, 0, 3])).tolist() == [0, 1, 0, 1, 2]


@pytest.mark.parametrize("seed", range(5))
def test_tokens_that_stay_are_those_of_the_chunks_and_of_the_accepted_paths(seed: int) -> None:
    batch, rng = Batch(seed), np.random.default_rng(seed)
    paths = [path_to(tree, int(rng.integers(0, len(tree)))) for tree in batch.trees]
    columns, positions, rows = kept(batch.step, paths)
    expected = []
    for row, (path, chunk, length) in enumerate(zip(paths, batch.chunks, batch.lengths, strict=True)):
        first = int(batch.step.first_tokens[row])
        expected += [(first + number, length - chunk + number, row) for number in range(chunk)]
        expected += [(first + chunk + node, length + depth, row) for depth, node in enumerate(path)]
    assert list(zip(columns.tolist(), positions.tolist(), rows.tolist(), strict=True)) == expected
