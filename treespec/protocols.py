"""Interfaces between the parts: scorers, steps, drafters, policies, rules and random sources.

A part is any object with the right methods; there is nothing to inherit from. A control, a policy that also chooses
whether to draft, has a page of its own: policies/control/contract.py. The numberings of nodes (here node id, builder
column, expanded number, pending id) and the axis letters are in docs/architecture.md. A docstring is a method's body.
"""

# pyright: reportReturnType=false

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import compress
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from treespec.tree import PADDING_PARENT, Path, TreeBatch, Verdict
from treespec.tree.highest import highest
from treespec.tree.history import History
from treespec.tree.transfer import download


class Capability(IntEnum):
    """The drafts that a model can verify in one pass: nothing beyond the next token, a chain, or a tree."""

    PLAIN = 0
    CHAIN = 1
    TREE = 2


HiddenStates = Mapping[int, Tensor]
"""Hidden states [B, F, H] as transformers counts layers: 0 the embedding, i after layer i, -1 the last one, normed."""


class Scores(NamedTuple):
    """New nodes' `logits` [B, F, V] in the model's dtype, and `hidden_states` of the layers that were asked for."""

    logits: Tensor
    hidden_states: HiddenStates = MappingProxyType({})


class CausalScorer(Protocol):
    """A causal language model with a cache that grows by trees and is cut back to paths.

    Pending nodes are those scored since the last commit, numbered in the order in which they came.
    """

    @property
    def capability(self) -> Capability: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def device(self) -> torch.device:
        """The device of its logits."""

    @property
    def max_positions(self) -> int | None:
        """How many positions the model has, None where it has no end."""

    @property
    def hidden_layers(self) -> tuple[int, ...]:
        """The layers whose hidden states it returns; see `HiddenStates`."""

    def prefill(self, ids: Int[Tensor, "B P"], mask: Bool[Tensor, "B P"]) -> Scores:
        """Start over with the committed tokens that are to be cached; the mask is False on left padding; P may be 0.

        Returns the logits [B, 1, V] after the last column, and the wanted hidden states of the columns that it
        computed, the last ones of the P; nothing, [B, 0, V], for P = 0.
        """

    def extend(self, tokens: Int[Tensor, "B F"], parents: Int[Tensor, "B F"]) -> Scores:
        """Score F new pending nodes, given on the host, in one pass.

        Parents are pending ids; -1: the last cached token, -2: padding.
        """

    def commit(self, paths: Sequence[Sequence[int]]) -> None:
        """Keep, per row, the pending nodes on `paths[b]` (in this order) in the cache and drop the others."""

    def select_rows(self, rows: Sequence[int]) -> None:
        """Keep only these rows, in this order."""


class PathProcessors(Protocol):
    """The caller's logits processors, applied along paths of a tree."""

    @property
    def is_path_free(self) -> bool:
        """True when no processor looks at the tokens before the position (temperature, top-k, top-p, min-p, none)."""

    @property
    def is_row_free(self) -> bool:
        """True when a row's number means nothing, so that paths of several rows may be stacked."""

    @property
    def can_remove_all(self) -> bool:
        """False when one of the tokens with a logit above -inf always keeps a score above it."""

    @property
    def ignores_padding(self) -> bool:
        """True when texts are to be shown without their left padding."""

    @property
    def is_order_free(self) -> bool:
        """True when processors see only which tokens a text has, so that texts of several lengths may be stacked, with
        tokens of theirs repeated."""

    def __call__(self, ids: Int[Tensor, "M L"], logits: Float[Tensor, "M V"], row: int) -> Float[Tensor, "M V"]:
        """Processed scores in float32 from raw logits after M texts; `row` is the row in the caller's batch."""


@dataclass(frozen=True)
class VerifiedStep:
    """One verified step, as drafters and statistics see it. The history already holds the emitted tokens."""

    trees: TreeBatch
    verdicts: list[Verdict]
    scores: Scores
    emitted: list[list[int]]
    """Tokens appended to each row: the accepted draft tokens and the next token, cut where generation stopped."""

    def top_tokens(self, k: int) -> Int[Tensor, "M k"]:
        """The target's k most likely tokens after every node of every row but padding, best first, on the host."""
        (top,) = download(highest(self.scores.logits, k))
        return top[self.trees.parents != PADDING_PARENT]


class Proposal(NamedTuple):
    """Next-token distributions of F nodes per row, dense or as candidates.

    Dense: `probs` float [B, F, V] and `tokens` None: an exact distribution that may be sampled from. Candidates:
    `tokens` int64 [B, F, k] in order of decreasing value and `probs` float [B, F, k], estimates that need not sum to
    one and are zero where there is no candidate: children can only be selected.
    """

    probs: Tensor
    tokens: Tensor | None = None


@dataclass(frozen=True)
class Frontier:
    """The F nodes per row that one draft pass expands; `TreeBuilder` makes it.

    Expanded nodes are numbered by column in the order of expansion, padding included: the root, which is expanded first
    and alone, is 0, and these are the last F of E. A parent has a lower number than its child.

    All is on the host but for `tokens` in trees of a fixed shape on an accelerator: there they stay where they were
    chosen, and the host waits for them only if it asks for `expanded_tokens` or `path_tokens`.
    """

    parents: Int[Tensor, "B F"]
    """Expanded numbers; -1 for the root, -2 for padding."""
    ancestors: Bool[Tensor, "B F E"]
    """Whether an expanded node is this node or one of its ancestors; False in the rows of padding."""
    known_tokens: Int[Tensor, "B E"] | Callable[[], Tensor]
    """`expanded_tokens`, or what reads them."""
    expanded_depths: Int[Tensor, "B E"]
    """0 for the root and for padding."""
    device_tokens: Int[Tensor, "B F"] | None = None
    """`tokens` where the host does not know them yet."""

    @property
    def expanded_tokens(self) -> Int[Tensor, "B E"]:
        """On the host; any token for padding."""
        return self.known_tokens if isinstance(self.known_tokens, Tensor) else self.known_tokens()

    @property
    def tokens(self) -> Int[Tensor, "B F"]:
        """On the host or on the device of the distributions; any token for padding."""
        if self.device_tokens is not None:
            return self.device_tokens
        return self.expanded_tokens[:, -self.parents.shape[1] :]

    @property
    def depths(self) -> Int[Tensor, "B F"]:
        return self.expanded_depths[:, -self.parents.shape[1] :]

    @property
    def is_root(self) -> bool:
        """Whether this is the first pass of a tree, over the root alone."""
        return self.expanded_depths.shape[1] == 1

    def path_tokens(self) -> list[list[Path | None]]:
        """Per row and node the tokens on its path below the root, None for padding."""
        columns = self.expanded_tokens[:, 1:], self.parents, self.ancestors[..., 1:]
        rows = zip(*(column.tolist() for column in columns), strict=True)
        return [
            [
                None if parent == PADDING_PARENT else tuple(compress(tokens, flags))
                for parent, flags in zip(*nodes, strict=True)
            ]
            for tokens, *nodes in rows
        ]


class DraftSource(Protocol):
    """The draft distributions that a policy grows its tree from, one pass of expanded nodes at a time."""

    @property
    def root_tokens(self) -> Int[Tensor, "B"]:
        """The last committed tokens, on the host."""

    @property
    def is_sampling(self) -> bool:
        """Whether the caller samples, so that children may be drawn."""

    @property
    def generator(self) -> torch.Generator:
        """The draft's own random stream."""

    def expand(self, frontier: Frontier) -> Proposal:
        """Next-token distributions of the frontier's nodes, computed in one pass on any device; any for padding."""


class TreePolicy(Protocol):
    """How a tree is shaped: which nodes are expanded and which children they get."""

    @property
    def max_nodes(self) -> int:
        """The most nodes of a tree, root included."""

    def grow(self, source: DraftSource, max_depth: int) -> TreeBatch:
        """Grow one tree per row, no deeper than `max_depth`."""


@runtime_checkable
class LearningPolicy(TreePolicy, Protocol):
    """A policy that looks at what became of its trees; the engine updates it once per step."""

    def update(self, step: VerifiedStep) -> None:
        """Learn from one verified step."""


class VerifiableTree(Protocol):
    """A tree as rules read it; `TokenTree` is one, exact toys in rational arithmetic are others."""

    @property
    def num_nodes(self) -> int: ...

    def children(self, node: int) -> Sequence[int]:
        """Child ids in verification order."""

    def token(self, node: int) -> int: ...

    def draft_probs_of(self, node: int) -> Any | None:
        """The distribution [V] that this child was drawn from after its earlier siblings; None for a point mass."""


NodeProbs = Callable[[int], Any]
"""Maps a node to the target distribution after it, an array [V], computed on demand and never changed by the rule."""


class RandomSource(Protocol):
    """Where a rule's randomness comes from: given coins and draws, or an enumeration of all of them."""

    def flip(self, node: int, prob: Any) -> bool:
        """True with probability `prob`; the coin is the one of the node that is accepted or rejected."""

    def pick(self, node: int, weights: Any) -> int:
        """An index drawn from unnormalised weights [V]; the draw is the one of the node that is drawn from."""


class VerificationRule(Protocol):
    """Decides which nodes of a drafted tree are kept."""

    @property
    def name(self) -> str:
        """The rule's name, in `verification=` and in messages."""

    @property
    def is_lossless(self) -> bool:
        """Whether what it emits has exactly the target's distribution, whatever the draft."""

    def reason_against(self, trees: TreeBatch) -> str | None:
        """Why the rule cannot verify these trees (their shape, or how their children were drawn), or None."""

    def verify(self, tree: VerifiableTree, target_probs: NodeProbs, rng: RandomSource) -> Verdict:
        """Verify one tree, reading only the nodes it needs. Generic over torch, numpy and rational arrays."""


@dataclass(frozen=True)
class Session:
    """A call, as drafters and controls get it at its start. `history` is the engine's own and is always up to date."""

    history: History
    is_sampling: bool
    processors: PathProcessors
    generator: torch.Generator
    device: torch.device
    vocab_size: int
    row_ids: list[int]
    """The caller's batch row of every row still at work, kept up to date by the engine."""
    policy: TreePolicy | None = None
    """How this call's trees are to be shaped; drafters that always propose the same shape need none."""
    prompt_states: HiddenStates = field(default_factory=dict)
    """Hidden states that the target's `prefill` returned: of the prompt's columns but the last, padding included."""
    target: CausalScorer | None = None
    """The target's scorer, for drafters that draft with the target itself."""
    is_chain_only: bool = False
    """The target verifies no trees but chains."""
    is_on_host: bool = True
    """The target runs on the CPU, where more tokens cost more."""
    is_repeatable: bool = False
    """The call drafts as any other with its seed: what a control chooses depends on no earlier call and on no clock."""
    is_flat: bool = False
    """Passes take the rows' nodes without padding, so that each row may have its own number of them."""

    def __getstate__(self) -> dict[str, Any]:
        """Copies of a drafter, pickled ones too, hold neither the target nor the caller's processors."""
        return vars(self) | {"target": None, "processors": None, "prompt_states": {}}


@runtime_checkable
class Drafter(Protocol):
    """A source of token trees, for one call of generation at a time.

    An attribute `confidence_weight`, a float, is optional: how much its trees' values weigh at first where `Merge`
    pools several drafters; 1, the default, takes them as a distribution, 0 ignores them.
    """

    def start(self, session: Session) -> None:
        """Forget the last call and read the prompt. Tables that learn across calls stay."""

    def propose(self, max_depth: int) -> TreeBatch:
        """Trees for all rows whose roots are `history.last_tokens`, no deeper than `max_depth` (>= 1).

        Children that were sampled must come with what they were really drawn from, or the output is biased: the
        distribution after all processors (`draft_probs`, `draft_index`), `is_without_replacement` where siblings were
        drawn so from one row, and drawing order. Which child is kept must not depend on its own token.
        """

    def update(self, step: VerifiedStep) -> None:
        """Learn what became of the last trees."""

    def select_rows(self, rows: Sequence[int]) -> None:
        """Keep only these rows, in this order: the others have finished."""


@runtime_checkable
class ServingDrafter(Drafter, Protocol):
    """A drafter whose rows may also join a running call, as a server's requests do."""

    def add_rows(self, num_rows: int) -> None:
        """The session's history has this many new rows, its last ones."""


@runtime_checkable
class FeatureDrafter(Drafter, Protocol):
    """A drafter that reads hidden states of the target: of the prompt in its session, then of every step's nodes."""

    @property
    def hidden_layers(self) -> tuple[int, ...]:
        """The layers it reads; see `HiddenStates`."""
