"""Grammars along the branches of a tree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any


def allowed_nodes(grammar: Any, request: str, tokens: Sequence[int], parents: Sequence[int]) -> Iterator[int]:
    """The nodes below the root that a grammar allows; at each of them the grammar is in the state after its path.

    The mask of a node's parent keeps forbidden nodes, and so those below them, from being accepted.

    Args:
        grammar: vLLM's `StructuredOutputGrammar` in the root's state, which it has again in the end.
        request: vLLM's name of the request.
        tokens: those of the N - 1 nodes below the root, in depth-first order.
        parents: N node ids, the root's first.
    """
    path = [0]
    for node, token in enumerate(tokens, start=1):
        if parents[node] not in path:  # Depth first: nodes that were left do not come back, forbidden ones never came.
            continue
        back = len(path) - 1 - path.index(parents[node])
        if back:
            grammar.rollback(back)
            del path[-back:]
        if grammar.validate_tokens([token]) and grammar.accept_tokens(request, [token]):
            path.append(node)
            yield node
    if len(path) > 1:
        grammar.rollback(len(path) - 1)
