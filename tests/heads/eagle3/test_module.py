"""EAGLE-3's unrolling against a plain reading of the head on its own features."""

import torch
from helpers.eagle3_files import PlainEagle3, random_tensors, shape, write
from helpers.head_files import SPECULATORS
from helpers.tiny import tiny_llama

from treespec.heads.eagle3.module import unroll
from treespec.hf.loading.heads import load_head


def test_unrolling_is_drafting_on_the_heads_own_features(tmp_path):
    target = tiny_llama(num_layers=8)
    made = shape(hidden=32, layers=2, flags={"norm_output": True})
    tensors = random_tensors(made)
    head = load_head(write(tmp_path, made, tensors, SPECULATORS), target)
    plain = PlainEagle3(made, tensors, target)
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
