"""Options that users write in `speculative_config`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from treespec.checks import AUTO, check_count, check_flag
from treespec.errors import ConfigError

if TYPE_CHECKING:
    from treespec.protocols import TreePolicy

METHOD, PROPOSER = "treespec", "treespec.vllm.Proposer"
READERS = {"head": "a folder or the name of one that ships with treespec", "draft_model": "a folder or a hub name"}
"""Drafters that are models, by the option that names their files, and what that may be."""
MERGE = "merge"  # Both lookups, and the model if there is one.
OWN_LAYERS = "mtp"
"""The head that is in the target's own checkpoint."""
TREE, OLD_TREE = "tree", "speculative_token_tree"


@dataclass(frozen=True)
class Options:
    """The keys of `speculative_config={"method": "treespec", ...}`; docs/vllm.md says what they mean.

    Raises `InvalidTreeError`: rank paths without a tree; `ConfigError`: a value of the wrong type or out of range, a
    tree larger than `num_speculative_tokens`, or a rule for chains with another tree.
    """

    num_speculative_tokens: int = 15
    drafter: str = MERGE
    tree: int | str | Sequence[Sequence[int]] = AUTO
    verification: str = AUTO
    warm_start: str | None = None
    head: str | None = None
    draft_model: str | None = None
    revision: str | None = None
    allow_untested: bool = False

    def __post_init__(self) -> None:
        check_count("num_speculative_tokens", self.num_speculative_tokens)
        check_flag("allow_untested", self.allow_untested)
        self._check_drafter()
        for name in ("warm_start", *READERS, "revision"):
            if (value := getattr(self, name)) is not None and not (isinstance(value, str) and value):
                raise ConfigError(f"{name} must be the name of files, a model or its version, got {value!r}")
        self._check_reader()
        nodes, most = self.policy.max_nodes, self.num_speculative_tokens + 1
        if nodes > most:
            takes = f"which takes num_speculative_tokens={nodes - 1}; it is {most - 1}"
            raise ConfigError(f"the tree has {nodes} nodes, its root included, {takes}")
        if self.verification != AUTO:
            self._check_rule()

    def _check_drafter(self) -> None:
        from treespec.drafters.registry import DRAFTERS

        names = (*DRAFTERS, MERGE, *READERS)
        if not isinstance(self.drafter, str) or (self.drafter not in names and ":" not in self.drafter):
            raise ConfigError(f"drafter must be one of {', '.join(names)} or 'module:Class', got {self.drafter!r}")

    def _check_reader(self) -> None:
        given = [name for name in READERS if getattr(self, name) is not None]
        if self.drafter in READERS and self.drafter not in given:
            raise ConfigError(f"drafter={self.drafter!r} needs {self.drafter}=, {READERS[self.drafter]}")
        if len(given) > 1 or (given and self.drafter not in (*given, MERGE)):
            drafts = f"one model drafts, with drafter={given[0]!r} or {MERGE!r}"
            raise ConfigError(f"{drafts}: leave out one of {' and '.join(given)} and {self.drafter!r}")
        if self.revision is not None and not given:
            raise ConfigError("revision is that of a head's or draft model's files: leave it out, or give one of them")

    def _check_rule(self) -> None:
        from treespec.policies import Paths
        from treespec.verification.registry import get_rule

        rule = get_rule(self.verification)
        if not rule.is_lossless:
            raise ConfigError(f"verification must be 'auto' or a lossless rule, got {self.verification!r}")
        is_chain = isinstance(self.policy, Paths) and not any(map(any, self.policy.paths))
        if getattr(getattr(rule, "requirements", None), "is_chain_only", False) and not is_chain:
            chain = "give a tree of one path, such as [(0,), (0, 0), (0, 0, 0)], or another rule"
            raise ConfigError(f"rule {self.verification!r} verifies chains only: {chain}")

    @classmethod
    def from_config(cls, config: Mapping[str, Any], method: Any = METHOD) -> Options:
        """Options from the mapping without `method`, which errors name. `speculative_token_tree` means `tree`.

        Raises `ConfigError`: an unknown key, both names of the tree, or as the class.
        """
        options = {TREE if name == OLD_TREE else name: value for name, value in config.items()}
        names = [field.name for field in fields(cls)]
        if len(options) < len(config):
            raise ConfigError(f"give {TREE} or {OLD_TREE}, which mean the same, not both")
        if "num_speculative_tokens_per_batch_size" in options:
            by_batch = "tree='auto', the default, chooses the number of draft tokens by the batch"
            raise ConfigError(f"num_speculative_tokens_per_batch_size is not served: leave it out, as {by_batch}")
        if unknown := sorted(set(options) - set(names)):
            known = f"with trees does not know {', '.join(unknown)}; it knows {', '.join(names)}"
            raise ConfigError(f"method {method!r} {known}")
        if options.get(TREE, AUTO) != AUTO and "num_speculative_tokens" not in options:
            options["num_speculative_tokens"] = _policy(options[TREE]).max_nodes - 1
        return cls(**options)

    @property
    def policy(self) -> TreePolicy:
        """How trees are grown, before any is cut to what it is worth."""
        from treespec.policies import Control  # With all drafters' trees, which only engines with trees need.

        return Control(self.num_speculative_tokens + 1) if self.tree == AUTO else _policy(self.tree)


def asked_of(config: Mapping[str, Any]) -> Options | None:
    """The options in a `speculative_config`: those of our method, or of vLLM's own drafters with a tree; else None.

    The length of vLLM's chain, `num_speculative_tokens`, gives way to the size of the tree.

    Raises `ConfigError`: a tree for another method, two models that draft, our name in capitals, or see `Options`.
    """
    options = dict(config)
    method = options.pop("method", None)
    if method == METHOD:
        return Options.from_config(options)
    if isinstance(method, str) and method.lower() == METHOD:
        raise ConfigError(f"vLLM's methods are written in lower case: 'method': {METHOD!r}, got {method!r}")
    if options.keys().isdisjoint((TREE, OLD_TREE)):
        return None
    is_mtp = f"_{method}".endswith("_mtp")  # vLLM's older names have the model's before it.
    files = options.pop("model", OWN_LAYERS if is_mtp else None)
    if method is None and files is not None:  # As vLLM guesses it.
        method = "eagle3" if "eagle3" in str(files).lower() else "draft_model"
    if files in (None, PROPOSER) or not (is_mtp or method in ("eagle3", "draft_model")):
        raise ConfigError(
            f"trees are drafted by {{'method': 'eagle3', 'model': FOLDER, 'tree': 8}}, by "
            "{'method': 'draft_model', 'model': NAME, 'tree': 8}, by {'method': 'mtp', 'tree': 8}, and by lookups, "
            f"{{'method': {METHOD!r}, 'tree': 8}}; got method {method!r}, model {files!r}: write one of them or no tree"
        )
    if options.get(TREE) != AUTO:
        check_count("num_speculative_tokens", options.pop("num_speculative_tokens", 1))
    if options.get("draft_tensor_parallel_size") == 1:  # So it is: the first rank drafts.
        del options["draft_tensor_parallel_size"]
    if twice := [name for name in READERS if name in options]:
        raise ConfigError(f"method {method!r} drafts by {files!r}: leave out {twice[0]!r}, or give it to {METHOD!r}")
    drafter = method if method in READERS else "head"
    return Options.from_config({"drafter": drafter, drafter: files, **options}, method)


def _policy(tree: Any) -> TreePolicy:
    """The policy of a size or a shape. Raises `ConfigError`: neither; `InvalidTreeError`: see `Options`."""
    from treespec.policies import as_policy

    is_size = isinstance(tree, int) and not isinstance(tree, bool) and tree > 1
    if not is_size and not isinstance(tree, (list, tuple)) and str(tree).strip()[:1] not in ("[", "("):
        forms = "'auto', a number of nodes from 2 on, the root included, or rank paths such as [(0,), (1,), (0, 0)]"
        raise ConfigError(f"tree must be {forms}, got {tree!r}")
    return as_policy(tree)
