"""Masks of grammars for the nodes of a tree, by a grammar that keeps its text."""

import numpy as np

from treespec.vllm.grammars import allowed_nodes

VOCAB, LENGTH = 5, 4


class Rising:
    """Allows texts of rising tokens, up to `LENGTH` of them; what is asked of it as vLLM asks."""

    def __init__(self, text: list[int]) -> None:
        self.text = text

    def allowed(self) -> list[int]:
        last = self.text[-1] if self.text else -1
        return list(range(last + 1, VOCAB)) if len(self.text) < LENGTH else []

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        return tokens if tokens[0] in self.allowed() else []

    def accept_tokens(self, request: str, tokens: list[int]) -> bool:
        assert tokens[0] in self.allowed()
        self.text = self.text + tokens
        return True

    def rollback(self, num_tokens: int) -> None:
        assert 0 < num_tokens < len(self.text)
        self.text = self.text[:-num_tokens]


def test_every_allowed_node_gets_the_mask_of_its_path_and_the_state_stays() -> None:
    rng = np.random.default_rng(0)
    num_masks = 0
    for _ in range(200):
        parents, stack = [-1], [0]
        for node in range(1, int(rng.integers(1, 12))):  # Depth first.
            parents.append(stack[-1] if rng.random() < 0.6 else stack[int(rng.integers(len(stack)))])
            stack = [*stack[: stack.index(parents[node]) + 1], node]
        tokens = rng.integers(0, VOCAB, len(parents) - 1).tolist()
        grammar = Rising([0])
        masks = {node: grammar.allowed() for node in allowed_nodes(grammar, "a", tokens, parents)}
        assert grammar.text == [0]
        paths = {0: [0]}
        for node, token in enumerate(tokens, start=1):
            path = paths.get(parents[node])
            if path is not None and token in Rising(path).allowed():
                paths[node] = [*path, token]
        assert masks == {node: Rising(path).allowed() for node, path in paths.items() if node}
        num_masks += len(masks)
    assert num_masks > 300
