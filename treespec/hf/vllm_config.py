"""`from_config`: speculation from vLLM's `speculative_config`, of which no key is ignored."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from treespec.checks import check_count
from treespec.drafters import SuffixLookup, SuffixStore, TokenRecycling
from treespec.errors import ConfigError
from treespec.heads import Medusa
from treespec.heads.drafting.base import HeadDrafter
from treespec.heads.files.kinds import KINDS
from treespec.hf.generation.speculation import TreeSpeculation
from treespec.hf.loading.drafters import make_draft_model
from treespec.hf.loading.heads import load_drafter
from treespec.hf.loading.models import load_model, load_tokenizer
from treespec.hf.loading.mtp import load_mtp
from treespec.policies import Chain, Paths
from treespec.protocols import Drafter
from treespec.tree import parse_paths

_KEYS: dict[str, set[str]] = {
    "draft_model": {"model", "tokenizer", "assistant_tokenizer"},
    "medusa": {"model"},
    "mtp": {"model"},
    "ngram": {"prompt_lookup_max", "prompt_lookup_min"},
    "suffix": set(),
    "token_recycling": set(),
}
_COMMON = {"method", "num_speculative_tokens", "speculative_token_tree"}


def from_config(config: Mapping[str, Any], *, target: PreTrainedModel | None = None, **options: Any) -> TreeSpeculation:
    """A `TreeSpeculation` from a configuration with vLLM's keys.

    Args:
        config: `method`, `num_speculative_tokens` (draft tokens per step), optionally
            `speculative_token_tree` (a list of rank paths as a literal; a chain without it), and the method's own keys:
            "draft_model": `model` (name, folder or model); with another tokenizer than the target's `tokenizer` (the
            target's) and `assistant_tokenizer` (its own), names or tokenizers. "eagle3", "dflash", "dspark" and
            "medusa": `model`, the head's name or folder. "mtp": `model`, the files, if they are not the target's.
            "ngram": `prompt_lookup_max`, `prompt_lookup_min`. "suffix" and treespec's own "token_recycling" have none.
        target: the target model, for "eagle3", "dflash", "dspark" and "mtp", which read its embedding and states.
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
    method = config.get("method")
    known = _KEYS | {kind: {"model"} for kind in KINDS}
    if not isinstance(method, str) or method not in known:
        raise ConfigError(f"method must be one of {sorted(known)}, got {method!r}")
    unknown = sorted(map(str, set(config) - _COMMON - known[method]))
    if unknown:
        raise ConfigError(f"method {method!r} does not know {unknown}; it knows {sorted(_COMMON | known[method])}")
    tree = _tree(config)  # Checked before a model is loaded.
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
    if method in KINDS:
        return _trained_head(method, config.get("model"), target)
    if method == "medusa":
        heads = config.get("model")
        if not isinstance(heads, (str, Path)):
            raise ConfigError(f"method 'medusa' needs 'model': the folder or file of the heads, got {heads!r}")
        return Medusa.load(heads)
    if method == "mtp":
        return load_mtp(_needed(method, target), config.get("model"))
    if method == "token_recycling":
        return TokenRecycling()
    if method == "suffix":
        return SuffixLookup(store=SuffixStore())
    longest = config.get("prompt_lookup_max", 5)
    shortest = config.get("prompt_lookup_min", 1)
    return SuffixLookup(max_match=longest, min_match=shortest, is_longest_only=True)


def _trained_head(method: str, name: Any, target: PreTrainedModel | None) -> HeadDrafter[Any]:
    if not isinstance(name, (str, Path)):
        raise ConfigError(f"method {method!r} needs 'model': the head's name or folder, got {name!r}")
    drafter = load_drafter(name, _needed(method, target))
    found = drafter.head.config.algorithm
    if found != method:
        raise ConfigError(f"{name} holds a head of method {found!r}, the configuration says {method!r}")
    return drafter


def _needed(method: str, target: PreTrainedModel | None) -> PreTrainedModel:
    if target is None:
        raise ConfigError(f"method {method!r} needs the target model: from_config(config, target=model)")
    return target
