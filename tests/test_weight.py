"""How much is imported: the loop and `TreeSpeculation` know little, and the core knows no add-on.

The limits are today's numbers, rounded up: lower one when you have made it smaller. `python tests/helpers/weight.py`
prints them.
"""

from typing import Any

from helpers import weight

from treespec.hf.add_ons import ADD_ONS

LOOP = 3_200
SPECULATION = 10_500
DECODE = 9
CONTROL, VLLM = 600, 2_000
DRAFTERS_IN_VLLM = {f"treespec.vllm.{name}" for name in ("draft_model", "heads", "mtp", "pages", "readers")}
"""Not counted: what drafts there by a model's weights."""


def test_the_loop_imports_little():
    found = weight.closure("treespec.engine.loop")
    assert sum(found.values()) <= LOOP, sorted(found)
    assert {weight.room(name) for name in found} <= weight.CORE


def test_speculation_imports_what_it_needs():
    found = weight.closure("treespec.hf.generation.speculation")
    assert sum(found.values()) <= SPECULATION, sorted(found)
    assert {weight.room(name) for name in found} <= weight.CORE


def test_decode_knows_few_modules():
    assert weight.num_imports("treespec.hf.generation.decode") <= DECODE


def test_the_control_and_the_plugin_are_small():
    rooms: dict[str, Any] = {"treespec.policies.control": 0, "treespec.vllm": 0}
    for name, lines in weight.graph().nodes(data="lines"):
        if (room := next((room for room in rooms if name.startswith(room)), None)) and name not in DRAFTERS_IN_VLLM:
            rooms[room] += lines
    assert rooms["treespec.policies.control"] <= CONTROL
    assert rooms["treespec.vllm"] <= VLLM


def test_the_core_imports_no_add_on():
    assert weight.edges_to_add_ons() == []


def test_the_count_sees_what_is_imported():
    """Packages' own files, modules given as names, and imports under conditions; not those in functions."""
    graph = weight.graph()
    assert graph.has_edge("treespec.engine.loop", "treespec.tree")
    assert graph.has_edge("treespec", "treespec.errors")
    assert not graph.has_edge("treespec.engine.loop", "treespec.policies.wrapping")
    assert sum(lines for _, lines in graph.nodes(data="lines")) > 20_000


def test_what_the_core_asks_of_add_ons_is_there():
    """The core knows their parts by name only, and loads them when they are needed."""
    assert all(callable(part) for part in ADD_ONS.values())
