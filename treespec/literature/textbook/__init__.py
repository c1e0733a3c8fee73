"""The textbook's algorithms on plain arrays: one chain, one round, every decision explained."""

from treespec.literature.textbook.chain import (
    RoundExplanation,
    TokenExplanation,
    explain_round,
    simulate_round,
    speculative_decode,
    speculative_decoding_verify,
)

__all__ = [
    "RoundExplanation",
    "TokenExplanation",
    "explain_round",
    "simulate_round",
    "speculative_decode",
    "speculative_decoding_verify",
]
