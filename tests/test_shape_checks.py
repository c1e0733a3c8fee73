"""Shapes in signatures are checked while the tests run: a wrong one is an error of its own."""

import ast
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.shape_checks import SHAPE
from jaxtyping import TypeCheckError

from treespec.errors import ConfigError
from treespec.hf.cache.slot_cache import _take
from treespec.literature.optimum import optimum_iid
from treespec.policies.best_first import best_nodes
from treespec.tree import TokenTree, TreeBatch

PACKAGE = Path(__file__).parent.parent / "treespec"
ROOMS = (
    *("tree", "verification", "policies", "heads/modules/kv_cache.py"),
    *("hf/attention/mask.py", "hf/attention/folded.py", "hf/cache", "hf/models"),
)
STATES = torch.ones(1, 2, 1, 3, 1)


BATCH = TreeBatch.from_trees([TokenTree.chain([1, 2])])
WRONG = [
    ("states", lambda: _take(STATES[0], torch.tensor([[0], [2]]))),
    ("index", lambda: _take(STATES, torch.tensor([[0], [2], [1]]))),  # A letter of two numbers.
    ("values", lambda: best_nodes(np.array([[1, 2]]), np.array([[0.5, 0.4, 0.1]]), 1)),
    ("keep", lambda: BATCH.keep_nodes(torch.ones(2, dtype=torch.bool))),  # A signature that is a string.
]


def test_wrong_shapes_are_found_and_errors_of_treespec_come_first() -> None:
    """Users' mistakes are errors of treespec's: also where the tests would find the shape wrong."""
    for argument, call in WRONG:
        with pytest.raises(TypeCheckError, match=argument):
            call()
    assert _take(STATES, torch.tensor([[0], [2]])).flatten().tolist() == [1.0, 1.0]
    with pytest.raises(ConfigError, match="one shape"):
        optimum_iid(torch.full((3,), 1 / 3), torch.full((2,), 1 / 2), 2)


def _shapeless(node: ast.AST | None) -> bool:
    """Whether a type names a tensor or an array without a shape.

    What lists and dictionaries hold is not checked: beartype looks at one item by chance.
    """
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return _shapeless(ast.parse(node.value, mode="eval").body)
    text = "" if node is None else ast.unparse(node)
    if node is None or SHAPE.match(text) or re.match(r"(?:list|Sequence|dict)\[", text):
        return False
    is_array = getattr(node, "id", getattr(node, "attr", None)) in ("Tensor", "ndarray")
    return is_array or any(_shapeless(child) for child in ast.iter_child_nodes(node))


def test_every_array_in_a_signature_or_a_field_has_a_shape() -> None:
    """Functions inside functions may do without. Fields are not checked when they are set."""
    paths, found = [PACKAGE / room for room in ROOMS], []
    for file in [file for path in paths for file in ([path] if path.suffix else sorted(path.rglob("*.py")))]:
        module = ast.parse(file.read_text())
        classes = [node for node in module.body if isinstance(node, ast.ClassDef)]
        for node in (*module.body, *(member for cls in classes for member in cls.body)):
            if isinstance(node, ast.FunctionDef):
                arguments = [item for item in ast.walk(node.args) if isinstance(item, ast.arg)]
                hints = {argument.arg: argument.annotation for argument in arguments} | {"return": node.returns}
                found += [f"{file.name}: {node.name}, {name}" for name, hint in hints.items() if _shapeless(hint)]
            if isinstance(node, ast.AnnAssign) and _shapeless(node.annotation):
                found.append(f"{file.name}: {ast.unparse(node)}")
    assert found == []
