"""On a pretended accelerator every drafter decodes what it decodes on the CPU, greedy and sampled."""

import warnings
from typing import Any

import pytest
import torch
from helpers.accelerator.device import DEVICE, PretendAccelerator
from helpers.accelerator.waits import cases, models_on, prompts

from treespec import Chain, KAry, Paths, Sequoia, TokenRecycling, TreeSpeculation
from treespec.literature import SpecExec, StochasticBeam, delayed_branching, dyspec, eagle2, opt_tree

CASES = list(cases())
CPU = torch.device("cpu")
SOME = ("draft model, 2 x 2, greedy", "suffix lookup, tree of 8, greedy", "EAGLE-3, 2 x 2, sampled")


def decode(case: Any, on_device: bool, num_rows: int, **more: Any) -> list[list[int]]:
    """The ids of a case's output, decoded on the CPU or on the pretended device."""
    _, make, extra = case
    ids, mask = prompts()
    ids, mask = ids.repeat(2, 1)[:num_rows], mask.repeat(2, 1)[:num_rows]
    options = {"max_new_tokens": 8, "eos_token_id": None, "pad_token_id": 0, **extra, **more}
    if not on_device:
        model, draft = models_on(CPU)
        return model.generate(ids, attention_mask=mask, custom_generate=make(draft), **options).tolist()
    with PretendAccelerator(), warnings.catch_warnings():
        model, draft = models_on(DEVICE)
        given = {"inputs": ids.to(DEVICE), "attention_mask": mask.to(DEVICE)}
        return model.generate(**given, custom_generate=make(draft), **options).inner.tolist()


@pytest.mark.parametrize("num_rows", [1, 2])
@pytest.mark.parametrize("case", [case for case in CASES if case[0] in SOME], ids=SOME)
def test_every_kind_of_drafter(case: Any, num_rows: int) -> None:
    """Batches of all cases are compared in test_counts.py."""
    assert decode(case, True, num_rows) == decode(case, False, num_rows)


def test_the_default_measures_passes_on_the_device() -> None:
    """`tree="auto"` measures the model's passes at its first call, on the device as on the CPU."""
    for extra in ({"do_sample": False}, {"do_sample": True}):
        case = ("auto", lambda draft: TreeSpeculation([draft, TokenRecycling()], seed=0), extra)
        output = decode(case, True, 4)
        assert [len(row) for row in output] == [9 + 8] * 4
        if not extra["do_sample"]:  # Sampled trees depend on the times measured.
            assert output == decode(case, False, 4)


FEWER_TOKENS_THAN_CHILDREN = {"do_sample": True, "top_k": 2}
SHAPES = {"all expanded": KAry((3, 2)), "some expanded": Paths([(0,), (1,), (2,), (0, 0), (2, 0), (2, 1), (0, 0, 0)])}


@pytest.mark.slow
@pytest.mark.parametrize("extra", [FEWER_TOKENS_THAN_CHILDREN, {"do_sample": True}, {"do_sample": False}])
@pytest.mark.parametrize("tree", SHAPES.values(), ids=SHAPES)
def test_levels_that_the_host_reads_at_the_end_make_the_same_trees(tree: Any, extra: dict[str, Any]) -> None:
    case = ("fixed shape", lambda draft: TreeSpeculation(draft, tree=tree, seed=0), extra)
    assert decode(case, True, 4) == decode(case, False, 4)


POLICIES = {
    "sequoia": lambda: Sequoia([[0.6, 0.2], [0.5, 0.2]], 6),
    "stochastic beam": lambda: StochasticBeam(2, 2),
    "specexec": lambda: SpecExec(6),
    "eagle2": lambda: eagle2(6),
    "opt_tree": lambda: opt_tree(6, 0.05),
    "dyspec": lambda: dyspec(6),
    "delayed branching": lambda: delayed_branching(2, (2,)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", POLICIES)
def test_every_policy(name: str) -> None:
    case = (name, lambda draft: TreeSpeculation(draft, tree=POLICIES[name](), seed=0), {"do_sample": True})
    assert decode(case, True, 4) == decode(case, False, 4)


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["target_walk", "recursive", "traversal", "token", "block"])
def test_every_rule_with_a_batched_form(rule: str) -> None:
    """On chains, which all of them verify; trees of selected children for the target walk."""
    tree = 6 if rule == "target_walk" else Chain(3)
    case = (rule, lambda draft: TreeSpeculation(draft, tree=tree, verification=rule, seed=0), {"do_sample": True})
    assert decode(case, True, 4) == decode(case, False, 4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["draft model, tree of 8, greedy", "draft model, 2 x 2, sampled"])
def test_static_caches_decode_the_same(name: str) -> None:
    more, case = {"cache_implementation": "static"}, next(case for case in CASES if case[0] == name)
    assert decode(case, True, 4, **more) == decode(case, False, 4, **more)


def test_counts_see_reads_uploads_and_launches() -> None:
    with PretendAccelerator("tests/accelerator") as device:
        values = torch.arange(4).to(DEVICE)
        device.clear()
        assert int(values.sum()) == 6
        _ = values + torch.tensor([1, 2, 3, 4]).to(DEVICE)
    totals = {kind: sum(getattr(device, kind).values()) for kind in ("reads", "uploads", "launches")}
    assert (totals["reads"], totals["uploads"]) == (1, 1)
    assert totals["launches"] >= 2
    assert all(line.startswith("test_same_output.py:") for line in device.reads)
