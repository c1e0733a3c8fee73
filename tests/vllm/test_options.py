"""What users write in `speculative_config`, and what is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from treespec.errors import ConfigError
from treespec.vllm import Options, Proposer
from treespec.vllm.plugin import PROPOSER, configure, options_of


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


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"drafters": "merge"}, "does not know drafters; it knows num_speculative_tokens"),
        ({"drafter": "eagle"}, "recycling, suffix, merge"),
        ({"drafter": 3}, "recycling, suffix, merge"),
        ({"verification": "typical"}, "target_walk"),
        ({"num_speculative_tokens": 0}, "num_speculative_tokens"),
        ({"tree": 0}, "tree"),
        ({"tree": 9, "num_speculative_tokens": 7}, "num_speculative_tokens=8"),
        ({"tree": 9, "speculative_token_tree": "[(0,)]"}, "not both"),
        ({"warm_start": 1}, "warm_start"),
        ({"head": 1}, "head must be"),
        ({"drafter": "head"}, "needs head="),
        ({"head": "SmolLM2-135M-Instruct", "drafter": "suffix"}, "drafter='head' or 'merge'"),
        ({"verification": "block"}, "chains only"),
        ({"verification": "token", "tree": [[0], [1]]}, "chains only"),
    ],
)
def test_errors_say_what_came_and_what_was_expected(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        Options.from_config(config)


def engine_args(**values: Any) -> SimpleNamespace:
    names = ("speculative_config", "additional_config", "worker_cls", "scheduler_cls", "block_size")
    return SimpleNamespace(**{**dict.fromkeys(names), **values})


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


@pytest.mark.parametrize("name", ["worker_cls", "scheduler_cls"])
def test_classes_of_the_users_own_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}=.*'my.Own': leave {name} out"):
        configure(engine_args(speculative_config={"method": "treespec"}, **{name: "my.Own"}), True)
    args = engine_args(speculative_config={"method": "treespec"}, worker_cls="auto")
    configure(args, True)
    assert args.worker_cls.endswith("TreeCPUWorker")


@pytest.mark.parametrize("config", [None, {"method": "ngram", "num_speculative_tokens": 3}])
def test_other_methods_are_left_alone(config: dict[str, Any] | None) -> None:
    args = engine_args(speculative_config=config)
    configure(args, True)
    assert args == engine_args(speculative_config=config)


def test_without_its_worker_the_proposer_says_what_to_set() -> None:
    with pytest.raises(RuntimeError, match="worker_cls="):
        Proposer(None).propose()
