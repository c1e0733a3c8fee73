"""What is special about EAGLE-3 drafts."""

import torch
from head_runs import make, run
from helpers.eagle3_files import shape
from helpers.tiny import prompt, tiny_llama


def test_a_budget_grows_no_deeper_than_with_any_other_draft_model(tmp_path):
    target = tiny_llama(num_layers=3)
    drafter, _ = make(tmp_path, target, shape(hidden=32, draft_vocab=64), seed=4)
    with torch.no_grad():
        drafter.head.lm_head.weight *= 40  # so sure of itself that every tree is a chain
    run(target, drafter, {"input_ids": prompt(1, 6)}, 24, tree=20)
    assert max(int(step.trees.depths.max()) for step in drafter.steps) == 8
