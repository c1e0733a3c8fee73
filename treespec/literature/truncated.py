"""Trees drawn from the draft's most probable tokens only: what optimal transport can verify.

The truncated distribution is also what is stored with them, so every lossless rule stays lossless.
"""

from treespec.checks import ShowsOptions, check_count, is_policy
from treespec.errors import ConfigError
from treespec.policies.control.contract import StepControl
from treespec.policies.wrapping import WrappingPolicy
from treespec.protocols import DraftSource, Frontier, Proposal, TreePolicy
from treespec.sampling import truncate_probs
from treespec.tree import TreeBatch


class Truncated(WrappingPolicy, ShowsOptions):
    """Another policy's trees over draft distributions that are cut to their `num_tokens` most probable tokens.

    With two sampled children per node and a width that is fixed beforehand (`Paths`, `KAry`, `Sequoia`, chains)
    `verification="optimal_transport"` and `"transport_traversal"` support the trees: they take distributions of at most
    20 tokens. Candidates of tables and look-ups, which have no distribution, are not changed.

    Raises `ConfigError`: `policy` is not a policy, or a `StepControl`, whose trees no rule of fixed widths can take;
    `num_tokens` is not a positive int.
    """

    def __init__(self, policy: TreePolicy, num_tokens: int = 20) -> None:
        if not is_policy(policy):
            raise ConfigError(f"policy must be a tree policy such as KAry((2, 2)), got {policy!r}")
        if isinstance(policy, StepControl):
            raise ConfigError('Truncated takes a policy of its own such as KAry((2, 2)), not a Control or "auto"')
        self.policy = policy
        self.num_tokens = check_count("num_tokens", num_tokens)

    def around(self, policy: TreePolicy) -> "Truncated":
        return Truncated(policy, self.num_tokens)

    def grow(self, source: DraftSource, max_depth: int) -> TreeBatch:
        return self.policy.grow(_TruncatedSource(source, self.num_tokens), max_depth)


class _TruncatedSource:
    """A source whose distributions are truncated, for one tree; see `DraftSource`."""

    def __init__(self, source: DraftSource, num_tokens: int) -> None:
        self._source = source
        self._num_tokens = num_tokens
        self.root_tokens = source.root_tokens
        self.is_sampling = source.is_sampling
        self.generator = source.generator

    def expand(self, frontier: Frontier) -> Proposal:
        proposal = self._source.expand(frontier)
        return proposal if proposal.tokens is not None else Proposal(truncate_probs(proposal.probs, self._num_tokens))
