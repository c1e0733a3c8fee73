"""Forms of `speculative_config` that users write, and those that are refused."""

# vLLM has an environment of its own.
# pyright: reportMissingImports=false
import importlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers import weight
from helpers.engines.models import tiny_llama

from treespec.errors import ConfigError
from treespec.vllm import Options, Proposer, plugin
from treespec.vllm.plugin import PROPOSER, configure, options_of, register


@pytest.mark.parametrize(
    ("config", "number", "nodes"),
    [
        ({}, 15, 16),
        ({"num_speculative_tokens": 7}, 7, 8),
        ({"tree": 24}, 23, 24),
        ({"tree": 8, "num_speculative_tokens": 15}, 15, 8),
        ({"speculative_token_tree": "[(0,), (1,), (0, 0)]"}, 3, 4),
        ({"tree": [[0], [1], [0, 0], [0, 1]]}, 4, 5),
    ],
)
def test_sizes(config: dict[str, Any], number: int, nodes: int) -> None:
    options = Options.from_config(config)
    assert (options.num_speculative_tokens, options.policy.max_nodes) == (number, nodes)


FORMS = "'auto', a number of nodes from 2 on, the root included, or rank paths such as [(0,), (1,), (0, 0)]"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"drafters": "merge"}, "method 'treespec' with trees does not know drafters; it knows num_speculative_tokens"),
        ({"head": "a/file", "revision": 3}, "revision must be"),
        ({"revision": "main"}, "revision is that of a head's or draft model's files"),
        ({"drafter": "eagle"}, "recycling, suffix, merge"),
        ({"verification": "typical"}, "target_walk"),
        ({"num_speculative_tokens": 0}, "num_speculative_tokens"),
        *(
            ({"tree": tree, "num_speculative_tokens": 7}, f"tree must be {FORMS}, got {tree!r}")
            for tree in (1, True, 8.0, "8", None)
        ),
        ({"num_speculative_tokens_per_batch_size": [[1, 4, 3]]}, "tree='auto', the default, chooses"),
        ({"tree": 9, "num_speculative_tokens": 7}, "num_speculative_tokens=8"),
        ({"tree": 9, "speculative_token_tree": "[(0,)]"}, "not both"),
        ({"warm_start": 1}, "warm_start"),
        ({"allow_untested": "yes"}, "allow_untested"),
        ({"head": 1}, "head must be"),
        ({"drafter": "head"}, "needs head="),
        ({"head": "SmolLM2-135M-Instruct", "drafter": "suffix"}, "drafter='head' or 'merge'"),
        ({"draft_model": 1}, "draft_model must be"),
        ({"drafter": "draft_model", "head": "mtp"}, "needs draft_model=, a folder or a hub name"),
        ({"draft_model": "a", "drafter": "recycling"}, "drafter='draft_model' or 'merge'"),
        (
            {"draft_model": "a", "head": "mtp"},
            "one model drafts, with drafter='head' or 'merge': leave out one of head and",
        ),
        ({"verification": "block"}, "chains only"),
        ({"verification": "token", "tree": [[0], [1]]}, "chains only"),
    ],
)
def test_errors_say_what_came_and_what_was_expected(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        Options.from_config(config)


def engine_args(**values: Any) -> SimpleNamespace:
    names = (
        "speculative_config", "additional_config", "worker_cls", "scheduler_cls", "block_size",
        "disable_hybrid_kv_cache_manager",
    )  # fmt: skip
    return SimpleNamespace(**{**dict.fromkeys(names), "enforce_eager": True, **values})


@pytest.mark.parametrize("is_cpu", [True, False])
def test_the_method_becomes_class_paths(is_cpu: bool) -> None:
    args = engine_args(
        speculative_config={"method": "treespec", "tree": 8, "drafter": "suffix"}, additional_config={"other": 1}
    )
    configure(args, is_cpu)
    assert args.speculative_config == {"model": PROPOSER, "num_speculative_tokens": 7}
    assert args.worker_cls.endswith("TreeCPUWorker" if is_cpu else "TreeWorker")
    assert args.block_size == (32 if is_cpu else None)
    assert args.additional_config["other"] == 1
    speculative_config = SimpleNamespace(num_speculative_tokens=7)
    config = SimpleNamespace(additional_config=args.additional_config, speculative_config=speculative_config)
    assert options_of(config) == Options(7, "suffix", 8)
    with pytest.raises(ConfigError, match="must be a mapping"):
        options_of(SimpleNamespace(additional_config={"treespec": "x"}, speculative_config=speculative_config))


@pytest.mark.parametrize("name", ["worker_cls", "scheduler_cls"])
def test_classes_of_the_users_own_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}=.*'my.Own': leave {name} out"):
        configure(engine_args(speculative_config={"method": "treespec"}, **{name: "my.Own"}), True)
    args = engine_args(speculative_config={"method": "treespec"}, worker_cls="auto")
    configure(args, True)
    assert args.worker_cls.endswith("TreeCPUWorker")


MODEL = {"drafter": "draft_model", "draft_model": "a/file"}


@pytest.mark.parametrize(
    ("given", "number", "expected"),
    [
        ({"method": "eagle3", "tree": 8}, 7, {"drafter": "head", "head": "a/file"}),
        ({"method": "eagle3", "tree": "auto", "num_speculative_tokens": 5}, 5, {"drafter": "head", "head": "a/file"}),
        (
            {"method": "eagle3", "speculative_token_tree": "[(0,), (1,), (0, 0)]", "num_speculative_tokens": 5},
            3,
            {"drafter": "head", "head": "a/file"},
        ),
        ({"method": "draft_model", "tree": 8, "revision": "v2"}, 7, {**MODEL, "revision": "v2"}),
        ({"method": "draft_model", "tree": 8, "drafter": "merge"}, 7, {"drafter": "merge", "draft_model": "a/file"}),
        (
            {"method": "qwen3_next_mtp", "model": None, "tree": 8, "num_speculative_tokens": 1},
            7,
            {"drafter": "head", "head": "mtp"},
        ),
        ({"method": "mtp", "tree": 8, "drafter": "merge"}, 7, {"drafter": "merge", "head": "a/file"}),
        ({"method": "draft_model", "tree": 8, "draft_tensor_parallel_size": 1}, 7, MODEL),
        ({"tree": 8, "num-speculative-tokens": 5}, 7, MODEL),
        ({"model": "a/Llama_EAGLE3", "tree": 8}, 7, {"drafter": "head", "head": "a/Llama_EAGLE3"}),
    ],
)
def test_vllms_methods_with_a_tree(given: dict[str, Any], number: int, expected: dict[str, Any]) -> None:
    config = {name: value for name, value in ({"model": "a/file"} | given).items() if value is not None}
    args = engine_args(speculative_config=config)
    configure(args, True)
    assert args.speculative_config == {"model": PROPOSER, "num_speculative_tokens": number}
    found = args.additional_config["treespec"]
    assert {
        "drafter": found["drafter"],
        **{k: found[k] for k in ("head", "draft_model", "revision") if found[k]},
    } == expected


@pytest.mark.parametrize(
    "config",
    [
        None,
        {"method": "ngram", "num_speculative_tokens": 3},
        {"method": "mtp"},
        {"method": "draft_model", "model": "a", "tensor_parallel_size": 1},
        {"model": "a", "num-speculative-tokens": 3},
    ],
)
def test_without_a_tree_vllms_own_methods_are_left_alone(config: dict[str, Any] | None) -> None:
    args = engine_args(speculative_config=config, spec_tokens=3)
    configure(args, True)
    assert args == engine_args(speculative_config=config, spec_tokens=3)


FLAGS = dict.fromkeys(("spec_method", "spec_model", "spec_tokens"))


@pytest.mark.parametrize(
    ("flags", "config", "number", "drafter"),
    [
        ({"spec_method": "treespec"}, None, 15, "merge"),
        ({"spec_tokens": 7}, {"method": "treespec"}, 7, "merge"),
        ({"spec_method": "treespec", "spec_tokens": 7}, {"drafter": "suffix"}, 7, "suffix"),
        ({"spec_method": "draft_model", "spec_model": "M", "spec_tokens": 3}, {"tree": 8}, 7, "draft_model"),
    ],
)
def test_vllms_arguments_for_single_keys_are_read(
    flags: dict[str, Any], config: dict[str, Any] | None, number: int, drafter: str
) -> None:
    args = engine_args(speculative_config=config, **{**FLAGS, **flags})
    configure(args, True)
    assert args.speculative_config == {"model": PROPOSER, "num_speculative_tokens": number}
    assert args.additional_config["treespec"]["drafter"] == drafter
    # vLLM writes them over the keys, or refuses them as given twice.
    assert {name: getattr(args, name) for name in FLAGS} == FLAGS


def test_real_arguments_become_a_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM reads its flags for single keys where it makes the configuration."""
    EngineArgs = pytest.importorskip("vllm.engine.arg_utils").EngineArgs
    Params = importlib.import_module("vllm.sampling_params").SamplingParams
    monkeypatch.setattr(Params, "_validate_spec_decode", Params._validate_spec_decode)  # Wrapped here, and undone.
    register()
    tiny_llama(tmp_path, 64)
    flags = {"model": str(tmp_path), "skip_tokenizer_init": True, "spec_method": "treespec", "spec_tokens": 7}
    config = EngineArgs(**flags, speculative_config={"drafter": "suffix"}).create_engine_config()
    options = options_of(config)
    assert (config.speculative_config.model, options.num_speculative_tokens) == (PROPOSER, 7)
    assert options.drafter == "suffix"
    with pytest.raises(ConfigError, match="spec_tokens and"):
        EngineArgs(**flags, speculative_config={"num_speculative_tokens": 7}).create_engine_config()


def test_a_key_that_is_given_twice_is_refused() -> None:
    args = engine_args(speculative_config={"method": "treespec", "num-speculative-tokens": 7}, spec_tokens=7)
    with pytest.raises(ConfigError, match=r"spec_tokens and speculative_config\['num_speculative_tokens'\] mean"):
        configure(args, True)
    both = {"num-speculative-tokens": 7, "num_speculative_tokens": 8}
    with pytest.raises(ConfigError, match="keys with - and with _ mean the same"):
        configure(engine_args(speculative_config={"method": "treespec", **both}), True)
    args = engine_args(speculative_config={"method": "treespec"}, additional_config={"treespec": {"tree": 4}})
    with pytest.raises(ConfigError, match=r"speculative_config and additional_config\['treespec'\] mean the same"):
        configure(args, True)
    for other in (None, {"method": "ngram", "num_speculative_tokens": 4}):
        args = engine_args(additional_config={"treespec": {"tree": 4}}, speculative_config=other)
        with pytest.raises(ConfigError, match=r"additional_config\['treespec'\] starts nothing alone"):
            configure(args, True)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"method": "Treespec"}, "lower case: 'method': 'treespec', got 'Treespec'"),
        *(
            (
                {"model": "a/head", "tree": 8, "method": method},
                f"'method': 'eagle3', 'model': FOLDER, 'tree': 8.* got method {method!r}",
            )
            for method in ("eagle", "mlp_speculator", "ngram")
        ),
        ({"tree": 8}, "'method': 'draft_model', 'model': NAME, 'tree': 8}.* got method None"),
        ({"model": "a/eagle3", "tree": 8, "quantization": "fp8"}, "method 'eagle3' with trees does not know quanti"),
        (
            {"method": "draft_model", "model": "a", "tree": 8, "draft_tensor_parallel_size": 2},
            "method 'draft_model' with trees does not know draft_tensor_parallel_size",
        ),
        (
            {"method": "eagle3", "model": "a", "head": "b", "tree": 8},
            "method 'eagle3' drafts by 'a': leave out 'head', or give it to 'treespec'",
        ),
        (
            {"method": "draft_model", "model": "a", "draft_model": "b", "tree": 8},
            "drafts by 'a': leave out 'draft_model'",
        ),
        ({"method": "mtp", "head": "b", "tree": 8}, "method 'mtp' drafts by 'mtp': leave out 'head'"),
        ({"model": PROPOSER, "num_speculative_tokens": 7, "tree": 8}, f"'tree': 8}}.* got .* model {PROPOSER!r}"),
        (
            {"method": "mtp", "num_speculative_tokens": "garbage", "tree": 8},
            "num_speculative_tokens must be .* got 'garbage'",
        ),
    ],
)
def test_trees_of_other_methods_are_refused_with_what_to_write(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        configure(engine_args(speculative_config=given), True)


TREES = {"method": "treespec"}


def logged(caplog: pytest.LogCaptureFixture, call: Callable[..., Any], *args: Any) -> list[str]:
    caplog.clear()
    # vLLM's loggers do not propagate.
    plugin.logger.addHandler(caplog.handler)
    with caplog.at_level("INFO", plugin.logger.name):
        call(*args)
    plugin.logger.removeHandler(caplog.handler)
    return list(dict.fromkeys(record.getMessage() for record in caplog.records))


@pytest.mark.parametrize("mode", [None, "NONE", "PIECEWISE", "FULL"])
def test_what_trees_need_is_set_with_one_line_and_what_was_asked_for_stays(
    mode: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    config = pytest.importorskip("vllm.config")
    given = config.CompilationConfig() if mode is None else config.CompilationConfig(cudagraph_mode=mode)
    args = engine_args(speculative_config=dict(TREES), enforce_eager=False, compilation_config=given)
    lines = logged(caplog, configure, args, False)
    assert ["cudagraph_mode=PIECEWISE" in line for line in lines] == [True] * (mode is None)
    assert (args.compilation_config is given) is (mode is not None)
    if mode is None:
        assert args.compilation_config.cudagraph_mode is config.CUDAGraphMode.PIECEWISE
        assert given.cudagraph_mode is None


def test_registration_wraps_nothing_but_the_ways_to_the_method() -> None:
    pytest.importorskip("vllm.config")
    from vllm import SamplingParams
    from vllm.engine.arg_utils import AsyncEngineArgs, EngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    plugin.register()
    plugin.register()
    assert hasattr(EngineArgs.create_engine_config, "is_treespec")
    assert not hasattr(SamplingParams._validate_spec_decode, "is_treespec")
    parser = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser())
    assert parser.parse_args(["--spec-method", "treespec"]).spec_method == "treespec"


def test_what_vllm_loads_in_each_process_imports_no_drafter() -> None:
    names = ("checks", "errors", "registry", "vllm", "vllm.options", "vllm.plugin")
    assert set(weight.closure("treespec.vllm.plugin")) == {"treespec", *(f"treespec.{name}" for name in names)}


def test_without_its_worker_the_proposer_says_what_to_set() -> None:
    pytest.importorskip("vllm.config")
    config = SimpleNamespace(parallel_config=SimpleNamespace(worker_cls=plugin.CPU_WORKER))
    with pytest.raises(RuntimeError, match="drafts by itself"):
        Proposer(config).propose()
    config.parallel_config.worker_cls = "vllm.v1.worker.cpu_worker.CPUWorker"
    with pytest.raises(ConfigError, match="worker_cls="):
        Proposer(config)


@pytest.mark.parametrize("config", [dict(TREES), {"model": PROPOSER, "num_speculative_tokens": 3}])
def test_the_check_of_parameters_is_replaced_where_the_method_is_used(
    config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("vllm.config")
    from vllm import SamplingParams

    from treespec.vllm import supported

    checked: list[Any] = []
    monkeypatch.setattr(supported, "check_config", checked.append)
    original = SamplingParams._validate_spec_decode
    monkeypatch.setattr(SamplingParams, "_validate_spec_decode", original)
    others: Any = SimpleNamespace(speculative_config=SimpleNamespace(model=None))
    assert plugin._with_trees(lambda args: others, engine_args(speculative_config={"method": "ngram"})) is others
    assert (SamplingParams._validate_spec_decode, checked) == (original, [])
    made = engine_config()
    assert plugin._with_trees(lambda args: made, engine_args(speculative_config=config)) is made
    assert hasattr(SamplingParams._validate_spec_decode, "is_treespec")
    assert checked == [made]


def engine_config(layer_types: Sequence[str] = (), is_hybrid: bool = False) -> SimpleNamespace:
    """An engine's configuration, as vLLM makes it of its arguments."""
    model = SimpleNamespace(is_hybrid=is_hybrid, hf_text_config=SimpleNamespace(layer_types=layer_types))
    scheduler = SimpleNamespace(disable_hybrid_kv_cache_manager=False)
    speculation = SimpleNamespace(model=PROPOSER)
    return SimpleNamespace(model_config=model, scheduler_config=scheduler, speculative_config=speculation)


@pytest.mark.parametrize(
    ("made", "is_disabled", "is_said"),
    [
        (engine_config(), True, False),
        (engine_config(["full_attention"] * 2), True, False),
        (engine_config(["sliding_attention", "full_attention"]), True, True),
        (engine_config(["linear_attention", "full_attention"], is_hybrid=True), False, False),
    ],
)
def test_layers_share_one_block_table_and_a_line_says_so_where_it_matters(
    made: SimpleNamespace, is_disabled: bool, is_said: bool, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    pytest.importorskip("vllm.config")
    from vllm import SamplingParams

    from treespec.vllm import supported

    monkeypatch.setattr(supported, "check_config", lambda config: None)
    monkeypatch.setattr(SamplingParams, "_validate_spec_decode", SamplingParams._validate_spec_decode)
    args = engine_args(speculative_config=dict(TREES))
    for _ in range(2):  # vLLM's users may make a configuration twice of the same arguments.
        made.scheduler_config.disable_hybrid_kv_cache_manager = False
        lines = logged(caplog, plugin._with_trees, lambda args: made, args)
        assert [line for line in lines if "disable_hybrid_kv_cache_manager=True" in line] == lines
        assert (made.scheduler_config.disable_hybrid_kv_cache_manager, len(lines)) == (is_disabled, is_said)
        assert not is_said or "; --no-disable-hybrid-kv-cache-manager saves that memory, with chains" in lines[0]
    args.disable_hybrid_kv_cache_manager = not is_disabled
    made.scheduler_config.disable_hybrid_kv_cache_manager = not is_disabled
    plugin._with_trees(lambda args: made, args)
    assert made.scheduler_config.disable_hybrid_kv_cache_manager is not is_disabled
