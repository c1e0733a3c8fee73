"""What the parts expect of each other: scorers, drafters, policies, rules and choosers.

A part is any object with the right methods; there is nothing to inherit from.
"""

from treespec.history import History
from treespec.protocols.drafters import Drafter, EarlyExitDrafter, FeatureDrafter, Session
from treespec.protocols.policies import DraftSource, LearningPolicy, Proposal, TreePolicy
from treespec.protocols.rules import Chooser, TargetLaw, VerifiableTree, VerificationRule
from treespec.protocols.scorers import (
    Capability,
    CausalScorer,
    EarlyExitScorer,
    HiddenStates,
    PathProcessors,
    Scores,
)
from treespec.protocols.steps import VerifiedStep
from treespec.tree import Path

__all__ = [
    "Capability",
    "CausalScorer",
    "Chooser",
    "DraftSource",
    "Drafter",
    "EarlyExitDrafter",
    "EarlyExitScorer",
    "FeatureDrafter",
    "HiddenStates",
    "History",
    "LearningPolicy",
    "Path",
    "PathProcessors",
    "Proposal",
    "Scores",
    "Session",
    "TargetLaw",
    "TreePolicy",
    "VerifiableTree",
    "VerificationRule",
    "VerifiedStep",
]
