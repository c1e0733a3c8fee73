"""torch's default device and default dtype, which belong to the user: neither changes anything."""

import ast
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from helpers.dflash_files import dspark, random_head
from helpers.tiny import noisy_copy, padded, prompt, tiny_llama

import treespec
from treespec.drafters import Merge, SuffixLookup, TokenRecycling
from treespec.heads import DFlash
from treespec.policies import BestFirst, Chain, Control, KAry

PACKAGE = Path(treespec.__file__).parent
INTEGERS = {"arange", "as_tensor", "full", "randint", "randperm", "tensor", "tril_indices", "triu_indices"}
"""Factories whose dtype follows their arguments."""
FLOATS = {"empty", "eye", "linspace", "logspace", "normal", "ones", "rand", "randn", "zeros"}
"""Factories of the default dtype."""


def is_torch(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "torch"


def missing(node: ast.AST) -> str | None:
    """The argument that a call of a factory or a generator leaves to a default of torch's."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not is_torch(node.func.value):
        return None
    name, given = node.func.attr, {keyword.arg for keyword in node.keywords}
    if name == "Generator":
        return None if node.args or "device" in given else "device"
    if name in INTEGERS | FLOATS and "device" not in given:
        return "device"
    return "dtype" if name in FLOATS and "dtype" not in given else None


def test_every_factory_names_device_and_dtype():
    found = [
        f"{file.relative_to(PACKAGE)}: {ast.unparse(node)}: no {what}"
        for file in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if (what := missing(node))
    ]
    assert not found


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


BLOCK = random_head(dspark(hidden_layers=(0, 1)))
CASES = {
    "merge": (lambda target: Merge([SuffixLookup(), TokenRecycling()]), lambda: BestFirst(8), "meta"),
    "recycling": (
        lambda target: TokenRecycling(),
        lambda: Control(8, pass_ms={1: 10.0, 64: 11.0}, is_timed=False),
        torch.bfloat16,
    ),
    "draft model": (noisy_copy, lambda: KAry((2, 2)), torch.bfloat16),
    "block": (lambda target: DFlash(BLOCK, (0, 1)), lambda: Chain(3), "meta"),
}
"""Drafters, without what an earlier call taught them, trees, and a default that is another one."""
OPTIONS = {
    "greedy": {"do_sample": False},
    "sampled": {"do_sample": True, "top_p": 0.9, "temperature": 0.9, "repetition_penalty": 1.2, "top_k": 20},
}


BATCH = padded(prompt(3), [0, 3, 1])


@pytest.mark.parametrize("case", CASES)
def test_generation_is_the_same_under_other_defaults(target, case):
    make, tree, setting = CASES[case]

    def text(options):
        speculation = treespec.TreeSpeculation(make(target), tree=tree(), seed=0)
        return target.generate(**BATCH, max_new_tokens=10, custom_generate=speculation, **options).tolist()

    for options in OPTIONS.values():
        expected = text(options)
        with default(setting):
            assert text(options) == expected


@pytest.mark.parametrize("setting", ["meta", torch.bfloat16], ids=str)
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


def test_the_first_use_of_a_model():
    """Its self-check, the pass times and `treespec.check`."""
    fresh = tiny_llama(seed=4)
    plain = fresh.generate(**BATCH, max_new_tokens=8, do_sample=False)
    with default("meta"):
        speculation = treespec.TreeSpeculation(TokenRecycling())
        options = {"max_new_tokens": 8, "do_sample": False, "custom_generate": speculation}
        assert torch.equal(fresh.generate(**BATCH, **options), plain)
        report = treespec.check(fresh, num_new=8, num_samples=16)
        assert report.is_right, str(report)
