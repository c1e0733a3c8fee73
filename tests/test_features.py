"""tests/features.toml, the list of what a user has: its tests exist, and it leaves out no public name or command."""

import ast
import functools
import re
import tomllib
from pathlib import Path
from typing import Any

import typer

import treespec
from treespec.commands import app

TESTS = Path(__file__).parent
ROOMS: dict[str, dict[str, list[str]]] = tomllib.loads((TESTS / "features.toml").read_text())
FEATURES = {feature: tests for room in ROOMS.values() for feature, tests in room.items()}
NAMED = {name for feature in FEATURES for name in re.findall(r"`([^`]+)`", feature)}
MOST = 3
"""Tests of a feature: one that needs more is several."""


@functools.cache
def functions(file: str) -> set[str]:
    path = TESTS / file
    found = ast.parse(path.read_text()).body if path.is_file() else []
    return {node.name for node in found if isinstance(node, ast.FunctionDef)}


def test_a_feature_has_tests_that_exist():
    for feature, tests in FEATURES.items():
        named = [test.split("::") for test in tests]
        assert [name for file, name in named if name not in functions(file)] == [], feature
        assert 1 <= len(tests) <= MOST, feature


def test_every_public_name_and_command_is_in_a_feature_and_each_stands_once():
    assert set(treespec.__all__) - NAMED == set()
    group: Any = typer.main.get_command(app)
    assert {f"treespec {name}" for name in group.commands} - NAMED == set()
    assert len(FEATURES) == sum(map(len, ROOMS.values()))
