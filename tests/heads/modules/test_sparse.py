"""Training's attention without the empty parts of its mask against plain attention under the whole mask."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from treespec.heads.modules.sparse import AnchoredAttention, UnrolledAttention

ROWS, KEY_HEADS, SHARE, SIZE, TOKENS = 2, 2, 3, 4, 9


def random_parts(num_queries, num_keys):
    generator = torch.Generator().manual_seed(0)
    shapes = [(ROWS, KEY_HEADS, SHARE * num_queries, SIZE), *[(ROWS, KEY_HEADS, num_keys, SIZE)] * 2]
    return [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]


def check(mixing, mask, queries, keys, values):
    """Outputs and gradients; `mask` bool [B or 1, F, S]."""
    whole = mask.repeat(1, SHARE, 1).unsqueeze(1)
    expected = scaled_dot_product_attention(queries, keys, values, attn_mask=whole)
    found = mixing(queries, keys, values)
    torch.testing.assert_close(found, expected)
    slopes = torch.randn(found.shape, generator=torch.Generator().manual_seed(1))
    parts = [queries, keys, values]
    for own, other in zip(*(torch.autograd.grad((x * slopes).sum(), parts) for x in (found, expected)), strict=True):
        torch.testing.assert_close(own, other)


@pytest.mark.parametrize("is_causal", [False, True])
def test_blocks_see_their_context_and_themselves(is_causal):
    num_blocks, size = 5, 3
    num_positions = num_blocks * size
    anchors = torch.tensor([[0, 2, 4, 4, 8], [1, 3, 5, 7, 8]])
    mask = torch.zeros(ROWS, num_positions, TOKENS + num_positions, dtype=torch.bool)
    for row in range(ROWS):
        for position in range(num_positions):
            block = position // size
            mask[row, position, : anchors[row, block]] = True
            last = position + 1 if is_causal else (block + 1) * size
            mask[row, position, TOKENS + block * size : TOKENS + last] = True
    mixing = AnchoredAttention(mask[..., :TOKENS], size, is_causal)
    check(mixing, mask, *random_parts(num_positions, TOKENS + num_positions))


@pytest.mark.parametrize("step", [0, 1, 3])
def test_unrolled_steps_see_the_text_and_their_own_line(step):
    lengths = [TOKENS - i for i in range(step + 1)]
    mask = torch.zeros(lengths[-1], sum(lengths), dtype=torch.bool)
    for query in range(lengths[-1]):
        mask[query, : query + 1] = True
        for i in range(1, step + 1):
            mask[query, sum(lengths[:i]) + query] = True
    check(UnrolledAttention(step, TOKENS), mask.unsqueeze(0), *random_parts(lengths[-1], sum(lengths)))
