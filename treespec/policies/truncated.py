"""Trees drawn from the draft's most probable tokens only: what optimal transport can verify.

The truncated distribution is also what is stored with them, so every lossless rule stays lossless.
"""

from treespec.checks import ShowsOptions, check_count, is_policy
from treespec.errors import ConfigError
from treespec.policies.chain import Chain
from treespec.policies.control.contract import StepControl
from treespec.protocols import DraftSource, Frontier, LearningPolicy, Proposal, TreePolicy, VerifiedStep
from treespec.sampling import truncate_probs
from treespec.tree import TreeBatch

CHAIN_LENGTH = 5
"""The most tokens of a chain that replaces a tree."""


class Truncated(ShowsOptions):
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

    @property
    def max_nodes(self) -> int:
        return self.policy.max_nodes

    def grow(self, source: DraftSource, max_depth: int) -> TreeBatch:
        return self.policy.grow(_TruncatedSource(source, self.num_tokens), max_depth)

    def update(self, step: VerifiedStep) -> None:
        if isinstance(self.policy, LearningPolicy):
            self.policy.update(step)


def shape_of(policy: TreePolicy | None) -> TreePolicy | None:
    """The policy that shapes the trees: what a `Truncated` wraps, or what a `StepControl` chose for this step."""
    if isinstance(policy, StepControl):
        return policy.current
    return shape_of(policy.policy) if isinstance(policy, Truncated) else policy


def is_chain(policy: TreePolicy | None) -> bool:
    """Whether all its trees are chains."""
    return isinstance(shape_of(policy), Chain)


def as_chain(policy: TreePolicy) -> TreePolicy:
    """The policy for a model that runs chains only: itself if it drafts chains, else a short chain, truncated alike.

    A `StepControl` stays, see `CallFacts.is_chain_only`.
    """
    if isinstance(policy, Truncated):
        return Truncated(as_chain(policy.policy), policy.num_tokens)
    is_kept = isinstance(policy, (Chain, StepControl))
    return policy if is_kept else Chain(min(max(policy.max_nodes - 1, 1), CHAIN_LENGTH))


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
