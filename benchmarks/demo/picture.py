"""One real step of a decoded text: its token tree, the accepted path and the target's probabilities."""

from collections.abc import Sequence
from typing import Any

import torch
from rich.markup import escape
from rich.tree import Tree
from torch import Tensor

from treespec.engine.stats import StepRecord
from treespec.tree import TokenTree, Verdict


def most_instructive_step(steps: Sequence[StepRecord]) -> int:
    """The index of the step whose accepted path leaves the first children most often; the first third, when the
    drafters know little of the text, and chains are left out where possible."""
    eligible = [i for i, step in enumerate(steps) if not step.trees[0].is_chain and i >= len(steps) // 3]
    return max(
        eligible or range(len(steps)), key=lambda i: (num_branch_tokens(steps[i]), steps[i].verdicts[0].num_accepted)
    )


def num_branch_tokens(step: StepRecord) -> int:
    """Accepted tokens that were not first children: what a chain would have missed."""
    tree = step.trees[0]
    return sum(tree.children(tree.parent_list[i])[0] != i for i in step.verdicts[0].path[1:])


@torch.no_grad()
def node_probs(model: Any, prefix: Tensor, tree: TokenTree, verdict: Verdict) -> list[float]:
    """The target's probability of every node's token after its path, from plain passes, and the next token's.

    `prefix` int64 [P] are the tokens before the root.
    """
    probs = [1.0] * (tree.num_nodes + 1)
    for leaf_path in tree.leaf_paths():
        ids = torch.cat([prefix, tree.tokens[list(leaf_path)]])
        distributions = model(ids[None], logits_to_keep=len(leaf_path)).logits[0].softmax(-1)
        for depth, node in enumerate(leaf_path):
            if node == verdict.path[-1]:
                probs[tree.num_nodes] = float(distributions[depth, verdict.next_token])
            if depth:
                probs[node] = float(distributions[depth - 1, tree.token(node)])
    return probs


def terminal_tree(tree: TokenTree, verdict: Verdict, texts: Sequence[str], probs: Sequence[float]) -> Tree:
    """The tree for a terminal: accepted nodes in green, and the token that the target added in yellow.

    Args:
        texts: of the nodes, and last of the next token.
        probs: see `node_probs`.
    """
    branches: dict[int, Tree] = {}
    for node in range(tree.num_nodes):
        style = "bold green" if node in verdict.path else "dim"
        share = f" {probs[node]:.2f}" if node else ""
        label = f"[{style}]{escape(repr(texts[node]))}{share}[/]"
        branches[node] = branches[tree.parent_list[node]].add(label) if node else Tree(label)
        if node == verdict.path[-1]:
            label = f"[bold yellow]{escape(repr(texts[-1]))} {probs[-1]:.2f}, the target's own[/]"
            branches[node].add(label)
    return branches[0]
