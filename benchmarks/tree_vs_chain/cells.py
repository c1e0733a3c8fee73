"""Measurements of one drafter along recorded texts."""

from collections.abc import Sequence
from typing import NamedTuple

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from benchmarks.common.drafters import DRAFT, Entry
from benchmarks.common.recorded import Text, without_layers
from benchmarks.tree_vs_chain.policies import BUDGETS, CHAIN, POLICIES, measuring_policy
from benchmarks.tree_vs_chain.replay import RecordedScorer, replay
from treespec.cpu import prepack_linears
from treespec.drafters import Merge
from treespec.drafters.merge.opinion_pool import OpinionPool
from treespec.engine.stats import SpeculationStats
from treespec.policies.sequoia import AcceptanceTable, non_increasing
from treespec.protocols import TreePolicy

NUM_KEPT = 16
RARELY = 1e-3
"""The least acceptance in a table: what was never accepted in the measuring texts still fills a large tree."""

Counts = dict[str, dict[str, list[int]]]
"""By policy and number of drafted tokens: accepted tokens plus one per step, summed over the steps, and the steps."""


class Models:
    """The target and its drafts, all with packed linear layers."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        self.target, self.tokenizer = model, tokenizer
        self.drafts = {DRAFT: without_layers(model)}
        for part in (model, *self.drafts.values()):
            prepack_linears(part)


class Played(NamedTuple):
    """A drafter's statistics along a text, and what a merge has learned by then."""

    stats: SpeculationStats
    pool: OpinionPool | None


class RecordedKit:
    """The draft models' scorers along one text, shared by all cells that are replayed there; see `Kit`."""

    pool: OpinionPool | None = None

    def __init__(self, models: Models, text: Text) -> None:
        self._models, self._text = models, text
        self.target = RecordedScorer(models.target, text, NUM_KEPT)
        self._scorers: dict[str, RecordedScorer] = {}
        self._is_text_enough = False

    def scorer(self, name: str) -> RecordedScorer:
        if name not in self._scorers:
            self._scorers[name] = RecordedScorer(self._models.drafts[name], self._text)
        self._scorers[name].is_text_enough = self._is_text_enough
        return self._scorers[name]

    def run(
        self,
        entry: Entry,
        policy: TreePolicy,
        is_fixed: bool,
        num_new: int,
        is_sampling: bool,
        pool: OpinionPool | None = None,
    ) -> Played:
        """One fresh drafter along the text; a merge begins with a copy of the pool."""
        # A merged tree is shaped by the draft model's confidence in nodes off the text, whatever the policy.
        self._is_text_enough = is_fixed and entry.scorer is not None
        self.target.is_text_enough = not entry.reads_logits
        self.pool = pool
        drafter = entry.make(self)
        stats = replay(self.target, drafter, policy, self._text, num_new, is_sampling)
        return Played(stats, drafter.pool if isinstance(drafter, Merge) else None)


class Learned:
    """Pools that a merge has learned along other texts, by policy and size."""

    def __init__(self, kits: Sequence[RecordedKit], entry: Entry, num_new: int, is_sampling: bool) -> None:
        self._kits, self._entry, self._num_new, self._is_sampling = kits, entry, num_new, is_sampling
        self._pools: dict[tuple[str, int], OpinionPool | None] = {}

    def pool(self, name: str, num_drafted: int, table: AcceptanceTable) -> OpinionPool | None:
        """For one of `POLICIES` with so many drafted tokens; None for drafters that do not learn."""
        if not self._entry.is_learning:
            return None
        if (name, num_drafted) not in self._pools:
            policy, is_fixed = POLICIES[name]
            pool = None
            for kit in self._kits:
                played = kit.run(
                    self._entry, policy(num_drafted, table), is_fixed, self._num_new, self._is_sampling, pool
                )
                pool = played.pool
            self._pools[name, num_drafted] = pool
        return self._pools[name, num_drafted]


def measure_cells(
    kit: RecordedKit, entry: Entry, table: AcceptanceTable, num_new: int, is_sampling: bool, learned: Learned
) -> Counts:
    """Every policy at every budget along one text. The largest trees come first: the others find their nodes scored."""
    found: Counts = {}
    for name, shape in POLICIES.items():
        found[name] = {}
        for n in sorted(BUDGETS[1:] if name != CHAIN else BUDGETS, reverse=True):
            pool = learned.pool(name, n, table)
            stats = kit.run(entry, shape.policy(n, table), shape.is_fixed, num_new, is_sampling, pool).stats
            found[name][str(n)] = [stats.num_accepted_tokens + stats.num_drafts, stats.num_drafts]
    for cells in found.values():  # A tree of one drafted token is a chain.
        cells["1"] = found[CHAIN]["1"]
    return found


def measure_table(
    kits: Sequence[RecordedKit], entry: Entry, num_new: int, is_sampling: bool
) -> dict[str, AcceptanceTable]:
    """How often the child of each depth and rank is accepted in a wide tree, for `Sequoia`."""
    total = SpeculationStats()
    for kit in kits:
        total.add(kit.run(entry, measuring_policy(), True, num_new, is_sampling).stats)
    rows = [non_increasing(row) for row in total.acceptance_per_depth_and_rank] or [[0.0]]
    return {"probs": [[max(prob, RARELY * 0.5**rank) for rank, prob in enumerate(row)] for row in rows]}
