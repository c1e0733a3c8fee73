"""A request with a seed draws the same numbers, whatever is drafted for it and whoever else is served."""

import torch

from treespec import TreeBatch
from treespec.vllm.streams import Streams


def chain(length: int, rows: int = 1) -> TreeBatch:
    tokens = torch.zeros(rows, length, dtype=torch.int64)
    return TreeBatch(tokens, torch.arange(-1, length - 1).expand(rows, length).contiguous())


def test_draws_belong_to_output_tokens() -> None:
    one, two = Streams(0), Streams(1)
    whole = one.uniforms(chain(100), [7], [0])[1][0]
    parts = [two.uniforms(chain(size, 2), [None, 7], [0, start])[1][1] for start, size in ((0, 3), (2, 90))]
    assert torch.equal(parts[0], whole[:3])
    assert torch.equal(parts[1], whole[2:92])
    assert len(whole.unique()) == 100


def test_siblings_share_a_draw_and_have_their_own_coins() -> None:
    trees = TreeBatch(torch.zeros(1, 3, dtype=torch.int64), torch.tensor([[-1, 0, 0]]))
    coins, draws = Streams(0).uniforms(trees, [7], [5])
    assert draws[0, 1] == draws[0, 2]
    assert len(set(coins[0].tolist())) == 3


def test_seeds_differ() -> None:
    found = [Streams(0).uniforms(chain(4), [seed], [0]) for seed in (1, 2, -1, -2, (1 << 63) + 1)]
    assert len({draw for _, draws in found for draw in draws[0].tolist()}) == 20
    assert not torch.equal(*found[0])


def test_without_a_seed_steps_differ() -> None:
    streams = Streams(0)
    first, second = (streams.uniforms(chain(4), [None], [0])[1] for _ in range(2))
    assert not torch.equal(first, second)


def test_other_rules_get_a_draw_per_node() -> None:
    trees = TreeBatch(torch.zeros(1, 3, dtype=torch.int64), torch.tensor([[-1, 0, 0]]))
    first, second = (Streams(k).uniforms(trees, [7], [5], is_by_depth=False)[1] for k in range(2))
    assert len(set(first[0].tolist())) == 3
    assert torch.equal(first, second)
