"""Versions of vLLM, by stand-ins for its modules; the table against a real one is in test_supported.py."""

import ast
import logging
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TypeVar

import pytest
from helpers import vllm_sources

from treespec.errors import UnsupportedModeError
from treespec.vllm.touched import TOUCHED, TRIED, VERSIONS, check_version, missing

ROOT = Path(__file__).parents[2]
Node = TypeVar("Node", bound=ast.AST)


@dataclass(init=False)
class Runner:
    """With a method that another version calls otherwise:

    _draw is what that calls it.
    """

    field: int

    def __init__(self) -> None:
        self.requests = {}

    def _sample(self, logits) -> None:
        """Nothing."""


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch):
    """A table of names of the runner above."""
    module = ModuleType("stand_in")
    vars(module)["Runner"] = Runner
    monkeypatch.setitem(sys.modules, "stand_in", module)
    return lambda *names: {"stand_in:Runner": names}


def test_names_that_differ_between_versions_stand_side_by_side(table) -> None:
    assert missing(table("requests", "field", "_sample(self,logits)")) == []
    assert missing(table("_draw")) == ["stand_in:Runner._draw"]
    assert missing(table("_draw(self,logits) or _sample(self,logits)", "states or requests")) == []
    both = "_draw(self,logits) or _sample(self,scores)"
    assert missing(table(both)) == [f"stand_in:Runner.{both}"]
    assert missing({"stand_in:Other": ["x"], "no_such_module": ["x"]}) == ["stand_in:Other", "no_such_module"]


@pytest.mark.parametrize(
    ("parameters", "is_known"),
    [("a,b,c", True), ("a,...", True), ("a,b,...", True), ("a,b", False), ("a,c,...", False), ("...", False)],
)
def test_what_is_called_may_have_more_parameters_with_defaults(
    parameters: str, is_known: bool, table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Runner, "example", staticmethod(lambda a, b=0, c=0: None), raising=False)
    assert (missing(table(f"example({parameters})")) == []) is is_known


@pytest.mark.parametrize("version", ["0.31.0", "0.33.0", "1.0"])
def test_another_version_is_named_in_a_warning_and_the_table_decides(
    version: str, table, caplog: pytest.LogCaptureFixture
) -> None:
    logger = logging.getLogger("vllm.treespec")
    logger.addHandler(caplog.handler)  # vLLM's loggers do not propagate; without vLLM this one does.
    check_version(f"{TRIED}.0", {})
    check_version(version, {})
    logger.removeHandler(caplog.handler)
    assert {record.getMessage() for record in caplog.records} == {
        f"treespec's tests were run with vLLM {TRIED}, this is {version}: compare its output"
    }
    with pytest.raises(UnsupportedModeError, match=rf"Runner\._draw; install .* {' or '.join(VERSIONS)}$"):
        check_version(version, table("_draw"))


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module that must not be imported, and the table with the hashes of two parts of it under version 0.9."""
    module, file = tmp_path / "read_only.py", tmp_path / "touched.toml"
    module.write_text(
        "1 / 0\nclass A:\n    @staticmethod\n    def one():\n        pass\n\n    def two(self):\n        pass\n"
    )
    file.write_text('[names]\na = ["b"]\n\n[sources."0.9"]\n')
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(vllm_sources, "FILE", file)
    vllm_sources.record("0.9", ["read_only:A.one", "read_only:A.two"])
    return module


def test_parts_whose_source_has_changed_are_named_and_recorded_next_to_the_others(package: Path) -> None:
    newest, known = vllm_sources.known_hashes("0.10")
    assert (newest, vllm_sources.differing(known)) == ("0.9", [])
    package.write_text(package.read_text().replace("@staticmethod", "@classmethod").replace("two", "three"))
    assert vllm_sources.differing(known) == ["read_only:A.one", "read_only:A.two (gone)"]
    assert vllm_sources.differing({"no_such.module:A": "0"}) == ["no_such.module:A (gone)"]
    before = vllm_sources.FILE.read_text()
    with pytest.raises(ValueError, match=r"A\.two"):
        vllm_sources.record("0.10", ["read_only:A.two"])
    assert vllm_sources.FILE.read_text() == before
    for _ in range(2):
        vllm_sources.record("0.10", ["read_only:A.one"])
        assert vllm_sources.FILE.read_text().startswith(before)
    newest, known = vllm_sources.known_hashes("0.11")
    assert (newest, list(known), vllm_sources.differing(known)) == ("0.10", ["read_only:A.one"], [])


def test_the_extra_installs_the_versions_that_are_served() -> None:
    """From the first of them to the one before the next."""
    (extra,) = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["vllm"]
    major, minor = VERSIONS[-1].split(".")
    assert extra == f"vllm>={VERSIONS[0]},<{major}.{int(minor) + 1}"


CPU_ONLY = {"vllm.v1.worker.cpu_model_runner", "vllm.v1.worker.cpu_worker"}
"""They replace torch's functions where they are imported: on a GPU the table must not."""
OBJECTS = {
    "backend": "vllm.v1.attention.backend:AttentionBackend",
    "batch input_batch": "vllm.v1.worker.gpu_input_batch:InputBatch",
    "cache_config": "vllm.config:CacheConfig",
    "compilation compilation_config": "vllm.config:CompilationConfig",
    "config vllm_config": "vllm.config:VllmConfig vllm.config:ModelConfig",
    "discard_request_mask slot_mapping": "vllm.v1.utils:CpuGpuBuffer",
    "draft_token_ids": "vllm.v1.outputs:DraftTokenIds",
    "engine_args": "vllm.engine.arg_utils:EngineArgs",
    "grammar": "vllm.v1.structured_output.backend_types:StructuredOutputGrammar",
    "graphs": "vllm.config:CUDAGraphMode",
    "group": "vllm.v1.worker.utils:AttentionGroup vllm.v1.kv_cache_interface:KVCacheGroupSpec",
    "kv_cache_config": "vllm.v1.kv_cache_interface:KVCacheConfig",
    "kv_cache_spec": "vllm.v1.kv_cache_interface:KVCacheSpec",
    "load": "vllm.config:LoadConfig",
    "loader": "vllm.model_executor.model_loader.default_loader:DefaultModelLoader",
    "layer": "vllm.model_executor.layers.attention:Attention",
    "manager": "vllm.v1.structured_output:StructuredOutputManager",
    "metadata": "vllm.v1.attention.backend:CommonAttentionMetadata vllm.v1.spec_decode.metadata:SpecDecodeMetadata",
    "model model_config": "vllm.config:ModelConfig vllm.model_executor.models.interfaces:SupportsEagle3",
    "module": "vllm.model_executor.layers.vocab_parallel_embedding:VocabParallelEmbedding",
    "parallel": "vllm.config:ParallelConfig",
    "param params sampling_params": "vllm.sampling_params:SamplingParams",
    "ranks": "vllm.distributed.parallel_state:GroupCoordinator",
    "request": "vllm.v1.request:Request vllm.v1.worker.gpu_input_batch:CachedRequestState",
    "sampler": "vllm.v1.sample.sampler:Sampler",
    "sampling": "vllm.v1.sample.metadata:SamplingMetadata",
    "scheduler scheduler_config": "vllm.config:SchedulerConfig",
    "scheduler_output": "vllm.v1.core.sched.output:SchedulerOutput",
    "speculative_config": "vllm.config:SpeculativeConfig",
    "structured_output_request": "vllm.v1.structured_output.request:StructuredOutputRequest",
    "structured_outputs_config": "vllm.config:StructuredOutputsConfig",
}
"""Classes of the plugin's variables and attributes by name, as the table names classes."""
MIXINS = {
    "TreeRunner": "vllm.v1.worker.gpu_model_runner:GPUModelRunner",
    "TreeScheduler": "vllm.v1.core.sched.scheduler:Scheduler",
    "WithTrees": "vllm.v1.worker.gpu_worker:Worker",
}
OTHERS = set("get items dtype name parameters weight embed_tokens get_language_model layers parents segments".split())  # noqa: SIM905
"""Not of these classes: Python's, PyTorch's, a model's own modules, or what the plugin itself adds."""
SOURCES = {
    file: ast.parse(file.read_text())
    for file in (ROOT / "treespec/vllm").glob("*.py")
    if file.stem not in ("draft_model", "mtp", "readers")  # These read transformers' models and our heads.
}


def listed(paths: str) -> set[str]:
    """The table's names of these classes."""
    return {one.split("(")[0] for path in paths.split() for entry in TOUCHED[path] for one in entry.split(" or ")}


def nodes(kind: type[Node], *trees: ast.AST) -> list[Node]:
    return [node for tree in trees for node in ast.walk(tree) if isinstance(node, kind)]


def test_the_table_has_every_name_that_is_imported() -> None:
    imported = {
        (node.module, alias.name)
        for node in nodes(ast.ImportFrom, *SOURCES.values())
        if (node.module or "").startswith("vllm") and node.module not in CPU_ONLY
        for alias in node.names
    }
    assert len(imported) > 20
    lacking = [pair for pair in imported if ":".join(pair) not in TOUCHED and pair[1] not in listed_of(pair[0])]
    assert lacking == []


def listed_of(module: str | None) -> set[str]:
    return listed(module) if module in TOUCHED else set()


def test_the_table_has_every_attribute_that_is_read() -> None:
    owners = {name: listed(paths) | OTHERS for names, paths in OBJECTS.items() for name in names.split()}
    read = {(_last(node.value), node.attr) for node in nodes(ast.Attribute, *SOURCES.values())}
    replaced = [call for call in nodes(ast.Call, *SOURCES.values()) if _last(call.func) == "replace"]
    read |= {(_last(getattr(call.func, "value", call)), word.arg or "") for call in replaced for word in call.keywords}
    assert owners.keys() <= {owner for owner, _ in read}
    assert [pair for pair in read if pair[1] not in owners.get(pair[0], {pair[1]}) and "__" not in pair[1]] == []


@pytest.mark.parametrize("name", MIXINS)
def test_the_table_has_what_mixins_read_from_themselves(name: str) -> None:
    (mixin,) = (node for node in nodes(ast.ClassDef, *SOURCES.values()) if node.name == name)
    own = [node for node in nodes(ast.Attribute, mixin) if _last(node.value) == "self"]
    made = {node.attr for node in own if isinstance(node.ctx, ast.Store)}
    made |= {node.name for node in nodes(ast.FunctionDef, mixin)}
    made |= {target.id for node in nodes(ast.ClassDef, *SOURCES.values()) for target in class_attributes(node)}
    assert {node.attr for node in own} - made - listed(MIXINS[name]) == set()


def class_attributes(node: ast.ClassDef) -> list[ast.Name]:
    return nodes(ast.Name, *(target for part in node.body if isinstance(part, ast.Assign) for target in part.targets))


def _last(node: ast.AST) -> str:
    """The last name of `a.b.c`."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
