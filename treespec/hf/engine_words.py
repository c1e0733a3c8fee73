"""SGLang's and TensorRT-LLM's settings of speculation in the keys of vLLM's, with the trees that they mean."""

from collections.abc import Mapping
from typing import Any

from treespec.checks import check_count
from treespec.errors import ConfigError
from treespec.policies import BestFirst, Chain, Paths
from treespec.protocols import TreePolicy
from treespec.tree import parse_paths

SGLANG_METHODS = {
    "EAGLE": "eagle",
    "EAGLE3": "eagle3",
    "NEXTN": "mtp",
    "STANDALONE": "draft_model",
    "NGRAM": "ngram",
    "DFLASH": "dflash",
}
TENSORRT_METHODS = {
    "Eagle": "eagle3",  # Its PyTorch engine reads EAGLE-3's files under either name.
    "Eagle3": "eagle3",
    "MTP": "mtp",
    "Medusa": "medusa",
    "DraftTarget": "draft_model",
    "NGram": "ngram",
}
MODEL = "model"


def in_vllm_words(config: Mapping[str, Any]) -> tuple[dict[str, Any], TreePolicy | None]:
    """The configuration with vLLM's keys, and the tree that it means; None: see `num_speculative_tokens`.

    Raises `ConfigError`: an unknown algorithm or key, a tree without a size.
    """
    for name, read in (("speculative_algorithm", _sglang), ("decoding_type", _tensorrt)):
        if name in config:
            return read(dict(config))
    return dict(config), None


def _sglang(config: dict[str, Any]) -> tuple[dict[str, Any], TreePolicy]:
    """The arguments of SGLang's server without their dashes."""
    found = _method(config, "speculative_algorithm", SGLANG_METHODS)
    _move(config, found, {"speculative_draft_model_path": MODEL})
    if found == {"method": "eagle"}:  # Without files these are the target's own layers.
        found["method"] = "mtp"
    width = check_count("speculative_eagle_topk", config.pop("speculative_eagle_topk", 1))
    num_nodes = config.pop("speculative_num_draft_tokens", None)  # SGLang counts the root.
    if num_nodes is not None:
        check_count("speculative_num_draft_tokens", num_nodes)
    # A lookup or a block has no steps, its chain is as long as the number of tokens says.
    steps = config.pop("speculative_num_steps", num_nodes - 1 if num_nodes and width == 1 else 0)
    depth = check_count("speculative_num_steps", steps)
    _refuse(config, "SGLang")
    tree = _tree(depth, width, num_nodes)
    return found | {"num_speculative_tokens": tree.max_nodes - 1}, tree


def _tensorrt(config: dict[str, Any]) -> tuple[dict[str, Any], TreePolicy]:
    """The fields of TensorRT-LLM's `speculative_config`."""
    found = _method(config, "decoding_type", TENSORRT_METHODS)
    names = {"speculative_model": MODEL, "speculative_model_dir": MODEL}
    _move(config, found, names | {"max_matching_ngram_size": "prompt_lookup_max"})
    key = "num_nextn_predict_layers" if "num_nextn_predict_layers" in config else "max_draft_len"
    depth = check_count(key, config.pop(key, 0))
    choices = config.pop("medusa_choices" if found["method"] == "medusa" else "eagle_choices", None)
    is_dynamic, width = config.pop("use_dynamic_tree", False), config.pop("dynamic_tree_max_topK", 1)
    num_drafted = config.pop("max_total_draft_tokens", None)
    _refuse(config, "TensorRT-LLM")
    if choices is not None:
        tree: TreePolicy = Paths(parse_paths(choices))
    else:
        num_nodes = None if num_drafted is None else 1 + check_count("max_total_draft_tokens", num_drafted)
        tree = _tree(depth, check_count("dynamic_tree_max_topK", width) if is_dynamic else 1, num_nodes)
    return found | {"num_speculative_tokens": tree.max_nodes - 1}, tree


def _tree(depth: int, width: int, num_nodes: int | None) -> TreePolicy:
    """The best nodes among the best `width` children of the best `width` nodes of each level; a chain for a width of 1.

    Raises `ConfigError`: no number of nodes for a tree.
    """
    if width == 1:
        return Chain(depth)
    if num_nodes is None:
        raise ConfigError("a tree of several nodes per level needs the number of its nodes, too")
    return BestFirst(num_nodes, beam=width, depth=depth, branching=width)


def _method(config: dict[str, Any], key: str, methods: Mapping[str, str]) -> dict[str, Any]:
    name = config.pop(key)
    if name not in methods:
        raise ConfigError(f"{key} must be one of {sorted(methods)}, got {name!r}")
    return {"method": methods[name]}


def _move(config: dict[str, Any], found: dict[str, Any], names: Mapping[str, str]) -> None:
    for old, new in names.items():
        if config.get(old) is not None:
            found[new] = config[old]
        config.pop(old, None)


def _refuse(config: Mapping[str, Any], engine: str) -> None:
    if config:
        raise ConfigError(f"of {engine}'s settings {sorted(map(str, config))} are not served: leave them out")
