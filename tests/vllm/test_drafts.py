"""Trees between two steps: depth first, cut to what vLLM scheduled, put together from several batches."""

import pytest
import torch

from treespec import TokenTree, TreeBatch
from treespec.vllm.drafts import Draft, depth_first, first_chains, scheduled_trees


def drafts_of(trees: TreeBatch) -> list[Draft]:
    return [Draft(trees, row, tree.token_list) for row, tree in enumerate(trees.trees)]


def random_trees(seed: int, sizes: tuple[int, ...] = (1, 4, 9, 12)) -> TreeBatch:
    """Random trees of points masses, parents before children, in no special order."""
    rng = torch.Generator().manual_seed(seed)
    trees = []
    for size in sizes:
        parents = [-1] + [int(torch.randint(0, node, (), generator=rng)) for node in range(1, size)]
        trees.append(TokenTree(torch.randperm(50, generator=rng)[:size], torch.tensor(parents)))
    return TreeBatch.from_trees(trees)


def sampled_trees(seed: int) -> TreeBatch:
    """Trees of two i.i.d. children, each of which has one of its own."""
    rng = torch.Generator().manual_seed(seed)
    tokens = torch.stack([torch.randperm(5, generator=rng) for _ in range(2)])
    probs = torch.rand(3, 5, generator=rng)
    return TreeBatch(
        tokens=tokens,
        parents=torch.tensor([[-1, 0, 0, 1, 2]] * 2),
        draft_probs=probs / probs.sum(1, keepdim=True),
        draft_index=torch.tensor([[-1, 0, 0, 1, 2]] * 2),
        is_without_replacement=torch.tensor([[False, True, True, False, False]] * 2),
    )


@pytest.mark.parametrize("seed", range(4))
def test_depth_first_is_the_order_of_a_recursive_walk(seed: int) -> None:
    trees = random_trees(seed)
    for before, after in zip(trees.trees, depth_first(trees).trees, strict=True):
        order, stack = [], [0]
        while stack:
            order.append(stack.pop())
            stack += reversed(before.children(order[-1]))
        number = {node: index for index, node in enumerate(order)}
        assert after.token_list == [before.token_list[node] for node in order]
        assert after.parent_list == [number.get(before.parent_list[node], -1) for node in order]


def test_depth_first_moves_distributions_with_their_children() -> None:
    trees = depth_first(sampled_trees(0))
    assert trees.parents.tolist() == [[-1, 0, 1, 0, 3]] * 2
    assert trees.draft_index is not None
    assert trees.draft_index.tolist() == [[-1, 0, 1, 0, 2]] * 2
    assert trees.is_valid


def test_what_was_scheduled_of_a_draft_is_its_beginning() -> None:
    trees = depth_first(random_trees(1))
    drafts = drafts_of(trees)
    scheduled = [draft.tokens[1:4] for draft in drafts]
    found = scheduled_trees(drafts, [draft.tokens[0] for draft in drafts], scheduled)
    for row, (tree, draft) in enumerate(zip(found.trees, drafts, strict=True)):
        assert tree.token_list == draft.tokens[:4]
        assert tree.parent_list == trees.trees[row].parent_list[:4]


def test_other_tokens_are_chains_up_to_padding() -> None:
    draft = drafts_of(depth_first(random_trees(2)))[3]
    found = scheduled_trees([draft, draft, None], [draft.tokens[0], 99, 7], [[98, 97], draft.tokens[1:3], [1, -1, -1]])
    assert [tree.token_list for tree in found.trees] == [[draft.tokens[0], 98, 97], [99, *draft.tokens[1:3]], [7, 1]]
    assert found.is_chain


def test_rows_of_several_batches_keep_their_distributions() -> None:
    first, second = (depth_first(sampled_trees(seed)) for seed in (1, 2))
    drafts = [drafts_of(second)[1], None, drafts_of(first)[0], drafts_of(random_trees(3, (3, 2)))[0]]
    tokens = [draft.tokens if draft else [1, 2] for draft in drafts]
    found = scheduled_trees(drafts, [row[0] for row in tokens], [row[1:] for row in tokens])
    assert found.is_valid
    for row, draft in ((0, drafts[0]), (2, drafts[2])):
        assert draft is not None
        for node in range(1, 5):
            expected = draft.trees.trees[draft.row].draft_probs_of(node)
            actual = found.trees[row].draft_probs_of(node)
            assert actual is not None
            torch.testing.assert_close(actual, expected)
    assert found.trees[3].draft_probs_of(1) is None


def test_requests_with_a_grammar_keep_a_chain() -> None:
    trees = depth_first(random_trees(4))
    found = first_chains(trees, [False, False, True, True])
    assert found.trees[1].token_list == trees.trees[1].token_list
    for row in (2, 3):
        assert found.trees[row].is_chain
        size = found.trees[row].num_nodes
        assert found.trees[row].token_list == trees.trees[row].token_list[:size]
