"""Recorded steps verified again: by another rule, or on a part of their trees."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import torch
from torch import Tensor

from treespec.data.tensor_file import open_tensors
from treespec.engine.target_probs import TargetProbs
from treespec.errors import ConfigError, TraceError
from treespec.lab.rules import UNNAMED
from treespec.lab.trace.records import Trace, TracedStep
from treespec.protocols import Scores, VerificationRule
from treespec.sampling import NoProcessors
from treespec.tree import TreeBatch, Verdict
from treespec.tree.history import History
from treespec.verification import RULES, TargetWalk, resolve
from treespec.verification.dispatch import verify_batch, verify_greedy


@dataclass(frozen=True)
class Replay:
    """Verdicts on recorded trees, step by step and row by row as in `Trace.steps`.

    Each step is replayed from the text that was recorded, whatever an earlier verdict would have made of it.
    """

    verdicts: list[Verdict]
    num_nodes: list[int]
    num_prompts: int = 0
    """How many of them a prompt's pass decided, without a draft."""

    @property
    def mean_acceptance_length(self) -> float:
        """Accepted draft tokens per later step and row, plus one."""
        num_drafts = max(len(self.verdicts) - self.num_prompts, 1)
        return 1 + sum(verdict.num_accepted for verdict in self.verdicts) / num_drafts


def replay(
    trace: Trace,
    rule: str | VerificationRule | None = None,
    *,
    max_depth: int | None = None,
    max_children: int | None = None,
    max_nodes: int | None = None,
) -> Replay:
    """Verify every recorded step again with its own uniform numbers.

    The same rule on whole trees gives the recorded verdicts. What a tree is cut to depends on no drawn token, so that
    the replayed rule stays exact on it.

    Args:
        trace: one that was recorded with `has_distributions=True`.
        rule: "auto", a rule's name or a rule; None: the one that was applied in each step, if a registered name stands
            for it: settings of a rule are not recorded.
        max_depth: levels that trees are cut to.
        max_children: first children of every node that they are cut to.
        max_nodes: first nodes that they are cut to.

    Raises:
        TraceError: a step has no distributions, or their file is missing; without `rule`, a step's is not registered.
        RuleMismatchError: the rule cannot verify one of the trees.
        ConfigError: an unknown rule, a bound below zero.
    """
    for name, bound in {"max_depth": max_depth, "max_children": max_children, "max_nodes": max_nodes}.items():
        if bound is not None and (type(bound) is not int or bound < 0):
            raise ConfigError(f"{name} must be None or an int of 0 or more, got {bound!r}")
    verdicts, sizes, num_prompts = [], [], 0
    for call in trace.calls:
        for _, group in groupby(call.steps, key=lambda step: step.step):
            rows = list(group)
            if rule is None and rows[0].rule not in RULES:
                raise TraceError(
                    f"{trace.path}, step {rows[0].step} was verified by a rule that is not registered "
                    f"({rows[0].rule.removeprefix(UNNAMED)}): give it, replay(trace, rule=...)"
                )
            target, kept = _load(trace, rows, (max_depth, max_children, max_nodes))
            verdicts += _verify(rows, target, kept, rule)
            sizes += map(len, kept)
            num_prompts += len(rows) * (rows[0].step == 0)
    return Replay(verdicts, sizes, num_prompts)


def _load(
    trace: Trace, rows: Sequence[TracedStep], bounds: tuple[int | None, ...]
) -> tuple[TargetProbs, list[list[int]]]:
    """The target's distributions at a step's trees, cut to the bounds, and the recorded ids of their nodes."""
    shard = rows[0].shard
    if shard is None:
        raise TraceError(
            f"{trace.path}, step {rows[0].step} was recorded without distributions: "
            "TreeSpeculation(..., trace=TraceFile(path, has_distributions=True))"
        )
    try:
        with open_tensors(Path(trace.path).parent / shard) as file:
            table = None if rows[0].draft_index is None else file.get_tensor("draft_probs")
            scores = [file.get_tensor(f"scores.{step.row}") for step in rows]
    except ValueError as error:
        raise TraceError(f"the distributions of step {rows[0].step} cannot be read: {error}") from error
    kept = [_kept(step, *bounds) for step in rows]
    trees = TreeBatch.from_trees([step.tree(table) for step in rows]).select_nodes(kept)
    cut = [found[nodes] for found, nodes in zip(scores, kept, strict=True)]
    padded = Scores(torch.nn.utils.rnn.pad_sequence(cut, batch_first=True))
    roots = trees.tokens[:, :1]
    history = History(roots, torch.ones_like(roots, dtype=torch.bool))  # The scores are processed already.
    return TargetProbs(trees, padded, history, NoProcessors(), [step.row for step in rows], is_sampling=True), kept


def _kept(step: TracedStep, max_depth: int | None, max_children: int | None, max_nodes: int | None) -> list[int]:
    """The nodes that stay, in order: none without its parent."""
    stays, depths = [True], step.tree().depths
    for node, parent in enumerate(step.parents[1:], start=1):
        rank = step.parents[:node].count(parent)
        bounds = ((depths[node] - 1, max_depth), (node, max_nodes), (rank, max_children))
        stays.append(stays[parent] and all(bound is None or number < bound for number, bound in bounds))
    return [node for node, stay in enumerate(stays) if stay]


def _verify(
    rows: Sequence[TracedStep],
    target: TargetProbs,
    kept: Sequence[Sequence[int]],
    verification: str | VerificationRule | None,
) -> list[Verdict]:
    """As the engine verifies; paths are of the recorded node ids."""
    is_sampling = rows[0].coins is not None
    rule = resolve(rows[0].rule if verification is None else verification, is_sampling, target.trees)
    if not is_sampling and isinstance(rule, TargetWalk):
        found = verify_greedy(target.trees, target)
    else:
        found = verify_batch(rule, target.trees, target, *_uniforms(rows, target.trees, kept))
    return [
        Verdict(tuple(ids[node] for node in verdict.path), verdict.next_token, verdict.is_bonus)
        for verdict, ids in zip(found, kept, strict=True)
    ]


def _uniforms(rows: Sequence[TracedStep], trees: TreeBatch, kept: Sequence[Sequence[int]]) -> Iterator[Tensor]:
    """Coins and draws of the kept nodes, float64 [B, N]."""
    for name in ("coins", "draws"):
        numbers = torch.zeros(trees.tokens.shape, dtype=torch.float64, device="cpu")
        for row, (step, nodes) in enumerate(zip(rows, kept, strict=True)):
            given = getattr(step, name) or [0.0] * step.num_nodes
            numbers[row, : len(nodes)] = torch.tensor(given, dtype=torch.float64, device="cpu")[nodes]
        yield numbers
