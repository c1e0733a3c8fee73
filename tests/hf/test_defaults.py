"""torch's default device and default dtype, which belong to the user: neither changes anything."""

import ast
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from helpers.dflash_files import dspark, random_head
from helpers.medusa_files import random_heads
from helpers.tiny import noisy_copy, padded, prompt, tiny_llama

import treespec
from treespec.drafters import Merge, SuffixLookup, TokenRecycling
from treespec.heads import DFlash, Medusa
from treespec.policies import BestFirst, Chain, Control, KAry

PACKAGE = Path(treespec.__file__).parent
INTEGERS = {"arange", "as_tensor", "full", "randint", "randperm", "tensor", "tril_indices", "triu_indices"}
"""Factories whose dtype follows their arguments."""
FLOATS = {"empty", "eye", "linspace", "logspace", "normal", "ones", "rand", "randn", "zeros"}
"""Factories of the default dtype."""


def calls(name: str):
    """The calls of torch's factories and generators in a file's source."""
    for node in ast.walk(ast.parse(name)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("torch."):
            yield node, ast.unparse(node.func).removeprefix("torch."), {keyword.arg for keyword in node.keywords}


def missing(name: str, node: ast.Call, given: set[str | None]) -> str | None:
    """The argument that a call leaves to a default of torch's."""
    if name == "Generator":
        return None if node.args or "device" in given else "device"
    if name in INTEGERS | FLOATS and "device" not in given:
        return "device"
    return "dtype" if name in FLOATS and "dtype" not in given else None


def test_every_factory_names_device_and_dtype():
    found = [
        f"{file.relative_to(PACKAGE)}:{node.lineno} {ast.unparse(node)}: no {what}"
        for file in PACKAGE.rglob("*.py")
        for node, name, given in calls(file.read_text())
        if (what := missing(name, node, given))
    ]
    assert not found


@pytest.mark.parametrize(
    ("call", "what"),
    [
        ("torch.tensor([1])", "device"),
        ("torch.zeros(3, device=x.device)", "dtype"),
        ("torch.rand(3, dtype=torch.float64)", "device"),
        ("torch.Generator()", "device"),
        ("torch.Generator('cpu')", None),
        ("torch.arange(3, device='cpu')", None),
    ],
)
def test_the_rule_finds_what_it_is_to_find(call, what):
    ((node, name, given),) = calls(call)
    assert missing(name, node, given) == what


@contextmanager
def default(setting):
    """Another default device, "meta" in place of an accelerator, or another default dtype."""
    before = torch.get_default_dtype()
    try:
        torch.set_default_device(setting) if setting == "meta" else torch.set_default_dtype(setting)
        yield
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(before)


def drafters(target):
    """Fresh ones, without what an earlier call taught them."""
    draft, medusa, block = noisy_copy(target), random_heads(), random_head(dspark(hidden_layers=(0, 1)))
    return {
        "recycling": TokenRecycling,
        "draft": lambda: draft,
        "medusa": lambda: Medusa(medusa),
        "dflash": lambda: DFlash(block, (0, 1)),
        "merge": lambda: Merge([SuffixLookup(), TokenRecycling()]),
    }


TREES = {
    "best": lambda: BestFirst(8),
    "chain": lambda: Chain(3),
    "kary": lambda: KAry((2, 2)),
    "control": lambda: Control(8, pass_ms={1: 10.0, 64: 11.0}, is_timed=False),
}
OPTIONS = {
    "greedy": {"do_sample": False},
    "sampled": {"do_sample": True, "top_p": 0.9, "temperature": 0.9, "repetition_penalty": 1.2, "top_k": 20},
}


PROMPTS = {"one row": {"input_ids": prompt(1)}, "a batch": padded(prompt(3), [0, 3, 1])}


def outputs(target, make, tree, options):
    """Texts of one row and of a batch."""
    speculation = treespec.TreeSpeculation(make(), tree=tree(), seed=0)
    return [
        target.generate(**inputs, max_new_tokens=10, custom_generate=speculation, **options).tolist()
        for inputs in PROMPTS.values()
    ]


@pytest.mark.parametrize(
    ("drafter", "tree", "setting"),
    [
        ("merge", "best", "meta"),
        ("recycling", "control", torch.bfloat16),
        ("draft", "kary", "meta"),
        ("draft", "best", torch.bfloat16),
        ("medusa", "best", torch.bfloat16),
        ("dflash", "chain", "meta"),
    ],
)
def test_generation_is_the_same_under_other_defaults(target, drafter, tree, setting):
    make = drafters(target)[drafter]
    for options in OPTIONS.values():
        texts = outputs(target, make, TREES[tree], options)
        with default(setting):
            assert outputs(target, make, TREES[tree], options) == texts


@pytest.mark.parametrize("setting", ["meta", torch.float64, torch.bfloat16], ids=str)
def test_trees_and_rules_by_hand(setting):
    def verdicts():
        tree = treespec.TokenTree.from_paths([(0,), (1,), (0, 0)], [0, 1, 2, 1])
        batch = treespec.TreeBatch.from_trees([tree])
        rows = [[0.25, 0.5, 0.25]] * 4
        chances = {"coins": [0.3] * 4, "draws": [0.4] * 4}
        generator = torch.Generator("cpu").manual_seed(0)
        singles = [treespec.verify(tree, rows, name, **chances) for name in ("target_walk", "recursive", "traversal")]
        return singles, treespec.verify(batch, [rows], generator=generator), batch.depths.tolist()

    expected = verdicts()
    with default(setting):
        assert verdicts() == expected


@pytest.mark.parametrize("setting", ["meta", pytest.param(torch.bfloat16, marks=pytest.mark.slow)], ids=str)
def test_the_first_use_of_a_model(setting):
    """Its self-check, the pass times, `treespec.check` and a trace."""
    fresh = tiny_llama(seed=4)
    plain = fresh.generate(**PROMPTS["a batch"], max_new_tokens=8, do_sample=False)
    with default(setting):
        speculation = treespec.TreeSpeculation(TokenRecycling())
        options = {"max_new_tokens": 8, "do_sample": False, "custom_generate": speculation}
        assert torch.equal(fresh.generate(**PROMPTS["a batch"], **options), plain)
        report = treespec.check(fresh, num_new=12, num_samples=64)
        assert report.is_right, str(report)
