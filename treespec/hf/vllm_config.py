"""`from_config`: speculation from vLLM's, SGLang's or TensorRT-LLM's settings, of which no key is ignored."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from treespec.checks import check_count
from treespec.drafters import SuffixLookup, SuffixStore
from treespec.drafters.registry import DRAFTERS
from treespec.errors import ConfigError
from treespec.heads.files.kinds import KINDS
from treespec.hf.engine_words import in_vllm_words
from treespec.hf.generation.speculation import TreeSpeculation
from treespec.hf.loading.drafters import make_draft_model
from treespec.hf.loading.formats import FORMATS, MTP, format_of
from treespec.hf.loading.heads import load_drafter
from treespec.hf.loading.models import load_model, load_tokenizer
from treespec.policies import Chain, Paths
from treespec.protocols import Drafter
from treespec.tree import parse_paths

_KEYS: dict[str, set[str]] = {
    "draft_model": {"model", "tokenizer", "assistant_tokenizer"},
    "ngram": {"prompt_lookup_max", "prompt_lookup_min"},
    "ngram_gpu": {"prompt_lookup_max", "prompt_lookup_min"},
    "suffix": {
        f"suffix_decoding_{name}"
        for name in ("max_tree_depth", "max_cached_requests", "min_token_prob", "max_spec_factor")
    },
}
_METHODS = {"assistant": "mtp", "dflash2": "dflash", "peagle": "eagle3"}
"""Kinds of drafters that vLLM runs by the method of another kind, to that method."""
_COMMON = {"method", "num_speculative_tokens", "speculative_token_tree"}


def from_config(config: Mapping[str, Any], *, target: PreTrainedModel | None = None, **options: Any) -> TreeSpeculation:
    """A `TreeSpeculation` from a configuration with vLLM's keys, or SGLang's or TensorRT-LLM's.

    Args:
        config: `method`, `num_speculative_tokens` (draft tokens per step), optionally
            `speculative_token_tree` (a list of rank paths as a literal; a chain without it), and the method's own keys:
            "draft_model": `model` (name, folder or model); with another tokenizer than the target's `tokenizer` (the
            target's) and `assistant_tokenizer` (its own), names or tokenizers. "eagle", "eagle3", "dflash", "dspark",
            "medusa" and other kinds of heads: `model`, the head's name or folder. "mtp": `model`, the files, if they
            are not the target's, or a Gemma 4 assistant's.
            "ngram" and "ngram_gpu": `prompt_lookup_max`, `prompt_lookup_min`. "suffix": `suffix_decoding_` with
            `max_tree_depth`, `min_token_prob`, `max_spec_factor`, and `max_cached_requests`, 0 for no store.
            Other drafters of `DRAFTERS`, "recycling" among them, have none. With `speculative_algorithm` these are
            the arguments of SGLang's server, with `decoding_type` TensorRT-LLM's settings, see `in_vllm_words`.
        target: the target model, for heads and "mtp", which read its embedding and states.
        options: keyword arguments of `TreeSpeculation` except `tree`.

    Raises:
        ConfigError: an unknown method or key, a missing key, a head of another method, a tree whose size is not
            `num_speculative_tokens`, or `tree` among the options.
        CheckpointError: the draft model or the heads cannot be loaded.
    """
    if not isinstance(config, Mapping):
        raise ConfigError(f"config must be a mapping such as {{'method': 'ngram', ...}}, got {config!r}")
    if "tree" in options:
        raise ConfigError("the configuration has the shape of the tree: use its speculative_token_tree, not tree=")
    config, tree = in_vllm_words(config)
    method = config.get("method")
    known = {name: set[str]() for name in DRAFTERS} | {name: {"model"} for name in (*KINDS, *FORMATS)} | _KEYS
    known["eagle3"] = {"model", "parallel_drafting"}
    if isinstance(method, str) and method.endswith("_mtp") and method not in known:
        method = "mtp"  # vLLM's older names for it, one for each architecture.
    if not isinstance(method, str) or method not in known:
        raise ConfigError(f"method must be one of {sorted(known)}, got {method!r}")
    unknown = sorted(map(str, set(config) - _COMMON - known[method]))
    if unknown:
        raise ConfigError(f"method {method!r} does not know {unknown}; it knows {sorted(_COMMON | known[method])}")
    tree = tree or _tree(config)  # Checked before a model is loaded.
    return TreeSpeculation(_drafter(method, config, target), tree=tree, **options)


def _tree(config: Mapping[str, Any]) -> Chain | Paths:
    count = check_count("num_speculative_tokens", config.get("num_speculative_tokens", 0))
    literal = config.get("speculative_token_tree")
    if literal is None:
        return Chain(count)
    paths = parse_paths(literal)
    if len(paths) != count:
        raise ConfigError(f"speculative_token_tree has {len(paths)} nodes, but num_speculative_tokens is {count}")
    return Paths(paths)


def _drafter(method: str, config: Mapping[str, Any], target: PreTrainedModel | None) -> Drafter | PreTrainedModel:
    if method == "draft_model":
        model = config.get("model")
        if not isinstance(model, (str, PreTrainedModel)):
            raise ConfigError(f"method 'draft_model' needs 'model': a name, a folder or a loaded model, got {model!r}")
        given = (config.get("tokenizer"), config.get("assistant_tokenizer"))
        target_tokenizer, tokenizer = (load_tokenizer(one) if isinstance(one, str) else one for one in given)
        model = load_model(model) if isinstance(model, str) else model
        if target_tokenizer is None and tokenizer is None:
            return model
        return make_draft_model(model, target_tokenizer=target_tokenizer, tokenizer=tokenizer)
    if method in KINDS or method in FORMATS:
        return _trained(method, config, target)
    if method == "suffix":
        return _suffix(config)
    if method in DRAFTERS:
        return DRAFTERS[method]()
    longest = config.get("prompt_lookup_max", 5)
    shortest = config.get("prompt_lookup_min", 1)
    return SuffixLookup(max_match=longest, min_match=shortest, is_longest_only=True)


def _suffix(config: Mapping[str, Any]) -> SuffixLookup:
    """vLLM's tree depth is that of the match and the draft together; its requests are counted, our store's tokens."""
    depth = check_count("suffix_decoding_max_tree_depth", config.get("suffix_decoding_max_tree_depth", 17))
    if config.get("suffix_decoding_max_cached_requests", 0) != 0:
        raise ConfigError(
            "suffix_decoding_max_cached_requests must be 0 or left out: a SuffixStore keeps a number of tokens"
        )
    store = None if "suffix_decoding_max_cached_requests" in config else SuffixStore(max_match=max(depth - 1, 1))
    min_prob = config.get("suffix_decoding_min_token_prob", 0.03)
    options = {"max_match": max(depth - 1, 1), "store": store, "min_prob": min_prob}
    if "suffix_decoding_max_spec_factor" in config:
        options["max_factor"] = config["suffix_decoding_max_spec_factor"]
    return SuffixLookup(**options)


def _trained(method: str, config: Mapping[str, Any], target: PreTrainedModel | None) -> Drafter:
    name = config.get("model", MTP if method == MTP else None)
    if not isinstance(name, (str, Path, PreTrainedModel)):
        raise ConfigError(f"method {method!r} needs 'model': the head's name or folder, got {name!r}")
    if target is None:
        raise ConfigError(f"method {method!r} needs the target model: from_config(config, target=model)")
    found = format_of(name)
    if found is None and method in FORMATS:  # Files that do not say what they are, such as a whole checkpoint's.
        return FORMATS[method].load(name, target, None)
    drafter: Any = load_drafter(name, target)
    found = found or drafter.head.config.algorithm
    if method not in (found, _METHODS.get(found)):
        raise ConfigError(f"{name} holds a head of method {found!r}, the configuration says {method!r}")
    is_parallel = found == "peagle"
    if config.get("parallel_drafting", is_parallel) is not is_parallel:
        raise ConfigError(f"parallel_drafting must be {is_parallel} for {name}, got {config['parallel_drafting']!r}")
    return drafter
