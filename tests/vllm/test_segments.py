"""Segments against a model of a paged cache, node by node: what every token sees, and what is in the cache after it."""

import numpy as np
import pytest
from helpers.engines.flat_trees import path_to, step_trees

from treespec.vllm.pages import kept
from treespec.vllm.segments import plan_segments, scratch_blocks, without_room

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


class Batch:
    """Requests with a text in a paged cache, a random tree each, some of them a chunk of a prompt before their root.

    In every fourth batch all trees are chains.
    """

    def __init__(self, seed: int) -> None:
        self.rng = rng = np.random.default_rng(seed)
        share = 0.6 if seed % 4 else 1.0
        self.trees = [depth_first_parents(rng, int(rng.integers(1, 10)), share) for _ in range(5)]
        self.chunks = [int(rng.integers(0, 6)) if len(tree) == 1 else 0 for tree in self.trees]
        self.lengths = [int(rng.integers(chunk, 14)) for chunk in self.chunks]  # Tokens before the root.
        self.table = rng.permutation(5 * COLUMNS).reshape(5, COLUMNS)
        self.free = 5 * COLUMNS + rng.permutation(200)
        self.step = step_trees(self.trees, self.lengths, self.chunks)
        self.num_tokens = sum(self.chunks) + sum(map(len, self.trees))

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


@pytest.mark.parametrize("seed", range(40))
def test_every_token_sees_its_path_and_the_accepted_path_comes_home(seed: int) -> None:
    batch = Batch(seed)
    needed = scratch_blocks(batch.step.parents, batch.step.depths, batch.step.positions, SIZE)
    plan = plan_segments(batch.step, batch.table, SIZE, batch.free[: needed.sum()])
    assert np.bincount(plan.requests[plan.table[0]], minlength=len(needed)).tolist() == needed.tolist()
    assert plan.has_segments == needed.any() == bool(seed % 4)
    cache, seen = run(batch, plan)
    for request, (tree, length) in enumerate(zip(batch.trees, batch.lengths, strict=True)):
        for node in range(len(tree)):
            text = [(request, position) for position in range(length)]
            expected = text + [batch.own(request, k) for k in path_to(tree, node)]
            assert seen[int(batch.step.roots[request]) + node] == expected

    paths = [path_to(tree, int(batch.rng.integers(len(tree)))) for tree in batch.trees]
    before, stay, last = dict(cache), [], np.array([path[-1] for path in paths])
    for source, target in plan.copies_home(last, batch.table).T.tolist():
        for k in range(SIZE):
            cache[target * SIZE + k] = before.get(source * SIZE + k)
    for request, (path, chunk, length) in enumerate(zip(paths, batch.chunks, batch.lengths, strict=True)):
        for position in range(length):
            assert cache[batch.slot(request, position)] == (request, position)
        for depth, node in enumerate(path):
            assert cache[batch.slot(request, length + depth)] == batch.own(request, node)
        first = int(batch.step.first_tokens[request])
        stay += [(first + number, length - chunk + number, request) for number in range(chunk)]
        stay += [(first + chunk + node, length + depth, request) for depth, node in enumerate(path)]
    assert [tuple(column) for column in np.stack(kept(batch.step, paths)).T.tolist()] == stay


def test_a_plan_with_too_few_scratch_blocks_fails() -> None:
    batch = Batch(1)
    needed = scratch_blocks(batch.step.parents, batch.step.depths, batch.step.positions, SIZE)
    with pytest.raises(AssertionError, match="before they are drafts"):
        plan_segments(batch.step, batch.table, SIZE, batch.free[: needed.sum() - 1])


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
