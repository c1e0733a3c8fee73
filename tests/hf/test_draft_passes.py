"""What a draft model computes, counted at the model: one pass per level, every node once, rows together."""

import pytest
from helpers.tiny import prompt

import treespec
from treespec.policies import Chain, KAry, Paths

SHAPES = {
    "chain": (Chain(3), [1, 1]),
    "k-ary": (KAry((2, 2, 1)), [2, 4]),
    "paths": (Paths([(0,), (1,), (0, 0), (0, 1), (0, 0, 0)]), [1, 1]),
}
"""A policy, and how many nodes below the root have children, level by level."""


@pytest.mark.parametrize("options", [{"do_sample": False}, {"do_sample": True}], ids=["greedy", "sampled"])
@pytest.mark.parametrize("name", SHAPES)
def test_a_step_computes_what_is_new_and_nothing_else(target, draft, name, options):
    policy, widths = SHAPES[name]
    speculation = treespec.TreeSpeculation(draft, tree=policy, record_steps=True, seed=2)
    passes = []

    def record(module, args, call):
        passes.append(tuple(call["input_ids"].shape))

    handle = draft.register_forward_pre_hook(record, with_kwargs=True)
    target.generate(prompt(2, 12), max_new_tokens=40, custom_generate=speculation, **options)
    handle.remove()
    assert passes[0] == (2, 11), "the prompt but for its last token, in one pass"
    first, num_missing, num_checked = 1, 1, 0
    for step in speculation.steps:
        if any(tree.num_nodes < policy.max_nodes for tree in step.trees) or len(step.rows) < 2:
            break  # The end is near: shallower trees, fewer rows.
        assert passes[first : first + 3] == [(2, num_missing), *((2, width) for width in widths)]
        first, num_checked = first + 3, num_checked + 1
        # Only the next token is new, and the path's last one where that was a leaf.
        pairs = zip(step.trees, step.verdicts, strict=True)
        num_missing = max(1 if tree.children(verdict.path[-1]) else 2 for tree, verdict in pairs)
    assert num_checked > 8
