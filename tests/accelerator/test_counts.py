"""How often a step waits for the device, and what it launches outside the models' passes."""

import warnings
from typing import Any

import pytest
import torch
from helpers.accelerator.device import DEVICE, PretendAccelerator
from helpers.accelerator.waits import cases, count, models_on, options_of, prompts

from treespec import KAry, TreeSpeculation

FIXED_LAUNCHES, LEVEL_LAUNCHES = 60, 12
"""Launches of a fixed shape or a lookup, and of a level of an adaptive tree."""
STEP_LAUNCHES = {"greedy": 6, "sampled": 43}
"""Besides those of its levels: what samples computes distributions and walks up from the leaves."""
TEXT_LAUNCHES = 3
"""More per level, of a head that also drafts the texts' tokens."""
NUM_TOKENS = 32
"""Tokens of every row: means over fewer depend on the draws."""
ROWS_LEAVE = 0.5
"""Where rows end, caches are cut: not in every step."""
QUICK = (
    "draft model, tree of 8, greedy",
    "both merged, tree of 8, sampled, top-p and penalty",
    "EAGLE-3 and tokens of the text, tree of 8, greedy",
)


def counted(case: Any) -> dict[str, Any]:
    """The cost of a case's step, see `count`; the output is that of the CPU."""
    with PretendAccelerator() as device, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        row = count(case, *models_on(DEVICE), device, NUM_TOKENS)
    (model, draft), (ids, mask) = models_on(torch.device("cpu")), prompts()
    given = {"inputs": ids, "attention_mask": mask, **options_of(case, NUM_TOKENS)}
    assert row["output"] == model.generate(**given, custom_generate=case[1](draft)).tolist()
    return row


@pytest.mark.parametrize(
    "case", [pytest.param(c, id=c[0], marks=[] if c[0] in QUICK else [pytest.mark.slow]) for c in cases()]
)
def test_waits_and_launches_are_few(case: Any) -> None:
    name, row = case[0], counted(case)
    is_adaptive = ", tree of" in name and row["levels"] > 0
    # A fixed shape waits for a level only where logits processors read the tokens on its paths.
    waiting_levels = row["levels"] if is_adaptive or "penalty" in name else 0
    assert row["reads"] + row["uploads"] <= waiting_levels + 2 + ROWS_LEAVE
    own = STEP_LAUNCHES["sampled" if "sampled" in name else "greedy"]
    limit = own + LEVEL_LAUNCHES * row["levels"] if is_adaptive else FIXED_LAUNCHES
    limit += TEXT_LAUNCHES * row["levels"] * ("tokens of the text" in name)
    assert row["launches"] - row["launches of processors"] <= limit


def test_a_walk_waits_for_no_draft_distribution() -> None:
    """Twice per step over a fixed shape, as other rules: it reads the target's distributions alone."""
    make = lambda draft: TreeSpeculation(draft, tree=KAry((2, 2)), seed=0, verification="target_walk")  # noqa: E731
    row = counted(("target walk, sampled", make, {"do_sample": True, "temperature": 0.9}))
    assert row["reads"] + row["uploads"] <= 2 + ROWS_LEAVE


@pytest.mark.slow
def test_launches_do_not_grow_with_the_nodes() -> None:
    """Processors along paths of a ragged batch: two nodes per level, or four and eight."""
    launches = []
    for shape in ((2, 1), (4, 2)):
        make = lambda draft, shape=shape: TreeSpeculation(draft, tree=KAry(shape))  # noqa: E731
        launches.append(counted(("penalty", make, {"do_sample": False, "repetition_penalty": 1.2}))["launches"])
    assert launches[1] < launches[0] * 1.15
