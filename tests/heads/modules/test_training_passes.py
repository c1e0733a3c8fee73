"""Training's passes over texts against plain readings of what they draft at each position."""

import pytest
import torch
from helpers import eagle3_files
from helpers.dflash_files import FULL, SLIDING, PlainDFlash, dflash2, dspark, random_tensors, shape, write
from helpers.head_files import SPECULATORS
from helpers.tiny import tiny_llama

from treespec.heads.eagle3.module import unroll
from treespec.hf.loading.heads import load_head

SINKS = {"extras": ("head_norms", "sinks", "mask_embedding"), "flags": {"attention_sink_bias": True}}
SHAPES = {
    "sinks": shape(draft_vocab=64, **SINKS),
    "dflash2": dflash2(),
    "a gate": dspark(flags={"markov_head_type": "gated"}),
    "a window": dspark(llama={"layer_types": [FULL, SLIDING], "sliding_window": 2}),
}


@pytest.mark.parametrize("made", SHAPES.values(), ids=SHAPES)
def test_blocks_anchored_in_texts_are_drafts(tmp_path, made):
    """Training's pass over two texts of different lengths against the plain reading of each block alone."""
    target, tensors = tiny_llama(num_layers=8), random_tensors(made)
    head = load_head(write(tmp_path, made, tensors, SPECULATORS), target)
    plain = PlainDFlash(made, tensors, target)
    generator = torch.Generator().manual_seed(1)
    texts, states = torch.randint(0, 64, (2, 9), generator=generator), torch.randn(2, 9, 64, generator=generator)
    anchors = torch.tensor([[5, 0, 3], [4, 1, 4]])
    outputs = head(texts, states, anchors)
    assert list(outputs.shape) == [2, 3, 3, 32]
    after = torch.randint(0, 64, (2, 3, 3), generator=generator)
    after[:, :, 0] = texts.gather(1, anchors)
    logits = head.read(outputs, after)
    for row, block in ((row, block) for row in range(2) for block in range(3)):
        anchor = int(anchors[row, block])
        for depth in range(3):
            text, path = texts[row, : anchor + 1].tolist(), after[row, block, 1 : depth + 1].tolist()
            expected = plain.logits(states[row, :anchor], text, path)[head.target_ids]
            torch.testing.assert_close(logits[row, block, depth].double(), expected, atol=1e-4, rtol=1e-4)
        plain._outputs.clear()
    # Nobody looks behind an anchor: padding needs no mask.
    behind = torch.arange(9) >= torch.tensor([[9], [5]])
    padded = texts.masked_fill(behind, 0), states.masked_fill(behind.unsqueeze(-1), 0.0)
    assert torch.equal(head(*padded, anchors), outputs)
    logits.sum().backward()
    assert all(parameter.grad is not None for parameter in head.parameters())


def test_unrolling_is_drafting_on_the_heads_own_features(tmp_path):
    target = tiny_llama(num_layers=8)
    made = eagle3_files.shape(hidden=32, layers=2, flags={"norm_output": True})
    tensors = eagle3_files.random_tensors(made)
    head = load_head(eagle3_files.write(tmp_path, made, tensors, SPECULATORS), target)
    plain = eagle3_files.PlainEagle3(made, tensors, target)
    generator = torch.Generator().manual_seed(1)
    states, text = torch.randn(1, 7, 96, generator=generator), torch.randint(0, 64, (8,), generator=generator).tolist()
    steps = [head.lm_head(outputs) for outputs in unroll(head, torch.tensor([text[1:]]), head.fuse(states), 3)]
    assert [list(step.shape) for step in steps] == [[1, 7, 40], [1, 6, 40], [1, 5, 40]]
    for i, step in enumerate(steps):
        for t in range(step.shape[1]):
            expected = plain.logits(states[0, : t + 1], text[: t + 2], text[t + 2 : t + 2 + i])
            torch.testing.assert_close(step[0, t].double(), expected[head.target_ids], atol=1e-4, rtol=1e-4)
    sum(step.sum() for step in steps).backward()
    assert all(parameter.grad is not None for parameter in head.parameters())
