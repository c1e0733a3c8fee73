"""Decoding under constraints: grammars along the branches of a tree, and drafts that they allow."""

from treespec.grammars.processor import GrammarProcessor
from treespec.grammars.states import GrammarState, token_enforcer

__all__ = ["GrammarProcessor", "GrammarState", "token_enforcer"]
