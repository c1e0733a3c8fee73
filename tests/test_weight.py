"""How much is imported: the loop and `TreeSpeculation` know little, and the core knows no add-on.

The limits are today's numbers, rounded up: lower one when you have made it smaller. `python tests/helpers/weight.py`
prints them.
"""

import inspect
import subprocess
import sys
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import pytest
from helpers import weight

import treespec
from treespec.hf.add_ons import ADD_ONS, RARE
from treespec.registry import lazy

AT_IMPORT = {"engine.loop": 3_400, "hf.generation.speculation": 10_100}
REACHABLE = {"engine.loop": 4_300, "hf.generation.speculation": 14_200}
"""Imports in functions, and those by import path, count too; of the core only."""
DECODE = 10
CONTROL, VLLM = 590, 2_000
LIBRARY, TESTS = 38_900, 36_800
DRAFTERS_IN_VLLM = {f"treespec.vllm.{name}" for name in ("draft_model", "files", "heads", "mtp", "pages", "readers")}
"""Not counted: what drafts there by a model's weights."""


@pytest.mark.parametrize("name", AT_IMPORT)
def test_little_is_imported(name):
    found = weight.closure(f"treespec.{name}")
    assert sum(found.values()) <= AT_IMPORT[name], sorted(found)
    assert {weight.room(module) for module in found} <= weight.CORE | {""}


@pytest.mark.parametrize("name", REACHABLE)
def test_little_can_be_imported_later(name):
    found = weight.in_core(f"treespec.{name}")
    assert sum(found.values()) <= REACHABLE[name], sorted(found)


def test_the_count_is_what_python_imports():
    code = "import sys\n" + "".join(
        f"import treespec.{name}; print(*[m for m in sys.modules if m.split('.')[0] == 'treespec'])\n"
        for name in AT_IMPORT
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for name, line in zip(AT_IMPORT, run.stdout.splitlines(), strict=True):
        assert set(line.split()) == set(weight.closure(f"treespec.{name}"))


START = "\n__getattr__, __dir__, __all__ = lazy("
LAZY = [name for name, file in weight.modules().items() if START in file.read_text()]


@pytest.mark.parametrize("package", ["treespec", *LAZY])
def test_names_that_load_at_their_first_use_are_those_of_type_checkers(package):
    module, origins = import_module(package), weight.lazy_names(package)
    for name in module.__all__:
        home, _, attribute = origins.get(name, f"{package}.{name}").rpartition(".")
        assert getattr(module, name) is getattr(import_module(home), attribute)
    assert set(origins) <= set(module.__all__) <= set(dir(module))
    with pytest.raises(AttributeError, match=f"'{package}' has no attribute 'nothing'"):
        _ = module.nothing


def test_packages_without_their_source_say_so(monkeypatch):
    def missing(module):
        raise OSError("could not get source code")

    monkeypatch.setattr(inspect, "getsource", missing)
    with pytest.raises(ImportError, match=r"treespec\.tree reads its public names from its source"):
        lazy("treespec.tree")


def test_the_map_has_the_limits():
    limits = {f"{limit:,}" for limits in (AT_IMPORT, REACHABLE) for limit in limits.values()}
    assert limits <= set((weight.ROOT / "docs/architecture.md").read_text().replace(".", " ").split())


def test_functions_rooms_and_pages_are_small():
    rooms: dict[str, Any] = {"treespec.policies.control": 0, "treespec.vllm": 0}
    for name, lines in weight.graph().nodes(data="lines"):
        if (room := next((room for room in rooms if name.startswith(room)), None)) and name not in DRAFTERS_IN_VLLM:
            rooms[room] += lines
    assert rooms["treespec.policies.control"] <= CONTROL
    assert rooms["treespec.vllm"] <= VLLM
    assert weight.num_imports("treespec.hf.generation.decode") <= DECODE
    counts = weight.counts()
    assert weight.function_lengths()[-1] <= 50
    assert counts["lines of benchmarks"][0] <= 6_000
    assert counts["lines of treespec"][0] <= LIBRARY
    assert counts["lines of tests"][0] <= TESTS
    assert counts["words of README and docs"][0] <= 25_000
    assert len((weight.ROOT / "CHANGELOG.md").read_text().split()) <= 600


def test_every_package_of_treespec_is_a_name_of_it():
    packages = {module.name for module in iter_modules(treespec.__path__) if module.ispkg} - {"commands", "vllm"}
    assert packages <= set(dir(treespec))


def test_the_core_imports_no_add_on_and_what_it_asks_of_them_is_there():
    """It knows their parts by name only, and loads them when they are needed: of the count, imports in functions."""
    assert weight.edges_to_add_ons() == []
    graph, reachable = weight.graph(), weight.graph(is_reachable=True)
    hidden = [
        ("treespec.hf.loading.as_drafter", "treespec.drafters.model.draft_model"),  # In a function, of a lazy package.
        ("treespec.verification.registry", "treespec.literature.kseq"),
    ]
    assert all(reachable.has_edge(*edge) and not graph.has_edge(*edge) for edge in hidden)
    assert all(callable(part) for part in [*ADD_ONS.values(), *RARE.values()])
    assert not {weight.room(part.__module__) for part in ADD_ONS.values()} & weight.CORE
    assert {weight.room(part.__module__) for part in RARE.values()} <= weight.CORE
