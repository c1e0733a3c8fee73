"""Tree logits against path logits, and why they differ: what a node sees, where it thinks it is, what is cached."""

from collections.abc import Sequence

import torch
from torch import Tensor

from treespec.hf.introspect import ModelFacts
from treespec.hf.models.capability import keeps_states, undisturbed
from treespec.hf.models.make_scorer import make_scorer
from treespec.hf.models.selfcheck import largest_difference, round_errors, tolerance_of
from treespec.hf.models.tree_scorer import TreeScorer
from treespec.hf.recurrent.scorer import StateScorer
from treespec.lab.selftest.report import FAILED, OK, WARNING, Outcome
from treespec.lab.selftest.subject import Subject
from treespec.protocols import Capability

PARENTS = (-1, 0, 0, 0, 1, 2, 3, 3)
"""Three children of the root; the path that is looked at goes by the third one to its first child."""
PATH = (0, 3, 6)
OTHERS = (1, 2, 4, 5, 7)


def check_passes(subject: Subject) -> Outcome:
    """Score a tree after a real prompt, commit a path, score another; compare with uncached passes along the paths."""
    found = make_scorer(subject.facts)
    if keeps_states(subject.model) and found.capability != Capability.TREE:
        return WARNING, "its layers' states have no form for trees: it decodes by chains or plainly"
    with undisturbed(subject.facts):
        prompt = subject.prompts[0][None]
        tolerance = tolerance_of(subject.facts, prompt)
        rounds = [(PARENTS, PATH)] * 2
        fresh, after = round_errors(subject.facts, _tree_scorer(subject), prompt[:, :-1], rounds, _tokens).tolist()
        numbers = f"{max(fresh, after):.1e} standard deviations of the logits, {tolerance:.1e} are rounding"
        if fresh <= tolerance and after <= tolerance:
            return OK, f"agree with path logits: at most {numbers}"
        cause = (
            _cause(subject, tolerance)
            if not fresh <= tolerance
            else "after a commit the cache does not hold the accepted path"
        )
    if found.capability == Capability.TREE:
        return FAILED, f"differ from path logits by {numbers}: {cause}"
    return WARNING, f"differ from path logits by {numbers} ({cause}): it decodes by chains or plainly, exact but slower"


def _cause(subject: Subject, tolerance: float) -> str:
    """Which rule of a tree pass is broken, by changing what a node must not, or must, depend on."""
    tokens = _tokens(subject.facts, len(PARENTS), 1)
    logits = _score(subject, tokens, PARENTS)
    others, ancestor = tokens.clone(), tokens.clone()
    others[0, list(OTHERS)] = tokens[0, list(OTHERS)].roll(1)
    ancestor[0, 3] = tokens[0, 1]
    if largest_difference(_score(subject, others, PARENTS)[[3, 6]], logits[[3, 6]]) > tolerance:
        return "a node sees its siblings (the tree mask does not hide them)"
    if not largest_difference(_score(subject, ancestor, PARENTS)[[6]], logits[[6]]) > tolerance:
        return "a node does not see its ancestors (the tree mask hides them)"
    alone = _score(subject, tokens[:, list(PATH)], (-1, 0, 1))
    if largest_difference(logits[[3, 6]], alone[1:]) > tolerance:
        return "positions follow the node's index, not its depth: siblings before a node shift it"
    return "a path alone is scored wrongly too: positions, mask or cache of a plain continuation"


def _tree_scorer(subject: Subject) -> TreeScorer:
    """A scorer of trees, whatever the self-check has found."""
    return StateScorer(subject.facts) if keeps_states(subject.model) else TreeScorer(subject.facts)


def _score(subject: Subject, tokens: Tensor, parents: Sequence[int]) -> Tensor:
    prompt = subject.prompts[0][None, :-1]
    scorer = _tree_scorer(subject)
    scorer.prefill(prompt, torch.ones_like(prompt, dtype=torch.bool))
    return scorer.extend(tokens, torch.tensor([list(parents)], device="cpu")).logits[0]


def _tokens(facts: ModelFacts, count: int, seed: int) -> Tensor:
    """Different tokens for all nodes, int64 [1, N], from the middle of the vocabulary."""
    size = facts.num_logits
    generator = torch.Generator("cpu").manual_seed(seed)
    order = size // 8 + torch.randperm(size - size // 8, generator=generator, device="cpu")
    return order[None, :count].to(facts.device)
