"""Collecting the nodes of B trees level by level: M nodes so far, w of them in a level."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from treespec.policies.children import Children, choose_children, resolve_children
from treespec.protocols import DraftSource, Frontier, Proposal
from treespec.tree import PADDING_PARENT, POINT_MASS, ROOT_PARENT, TreeBatch


class TreeBuilder:
    """Collects nodes of B rows side by side and turns them into a `TreeBatch`.

    A node's *column* is where it was added (the root's is 0), the same for all rows. Sources know nothing of columns:
    they number the nodes that were *expanded*, see `Frontier`.

    `tokens`, `parents`, `depths` int64 [B, M] (parent -2: no node), `values` float32 [B, M]: see `TreeBatch`.
    """

    def __init__(self, source: DraftSource) -> None:
        self._source = source
        self.tokens = source.root_tokens.unsqueeze(1)
        self.parents = torch.full_like(self.tokens, ROOT_PARENT)
        self.depths = torch.zeros_like(self.tokens)
        self.values = torch.ones_like(self.tokens, dtype=torch.float32)
        self._draft_index = torch.full_like(self.tokens, POINT_MASS)
        self._flags = torch.zeros_like(self.tokens, dtype=torch.bool)
        self._numbers = torch.full_like(self.tokens, PADDING_PARENT)
        """int64 [B, M]: expanded numbers by column."""
        self._expanded_tokens = self.tokens[:, :0]
        self._expanded_depths = self.depths[:, :0]
        self._ancestors = torch.zeros(len(self.tokens), 0, 0, dtype=torch.bool, device=self.tokens.device)
        """bool [B, E, E]: of all expanded nodes."""
        self._probs: list[Tensor] = []

    @property
    def root(self) -> Int[Tensor, "B 1"]:
        """The roots' columns."""
        return torch.zeros_like(self.tokens[:, :1])

    @property
    def is_on_host(self) -> bool:
        """Whether values can be read without waiting for a device."""
        return self.tokens.device.type == "cpu"

    def is_exhausted(self, nodes: Int[Tensor, "B w"]) -> bool:
        """True when no row has any of `nodes`. Never True on an accelerator, which is not waited for."""
        return self.is_on_host and not bool(self._is_node(nodes).any())

    def take(self, values: Tensor, nodes: Int[Tensor, "B w"]) -> Tensor:
        """`values` [B, M] at the columns `nodes`; padding reads the root."""
        return values.gather(1, nodes.clamp(min=0))

    def expand(self, nodes: Int[Tensor, "B F"]) -> Proposal:
        """Next-token distributions of `nodes`, columns or -2; each node is expanded once at most."""
        return self._source.expand(self._frontier(nodes))

    def _frontier(self, nodes: Int[Tensor, "B F"]) -> Frontier:
        """Number `nodes` as expanded."""
        columns, is_node = self.take(self.parents, nodes), self._is_node(nodes)
        above = torch.where(columns == ROOT_PARENT, ROOT_PARENT, self.take(self._numbers, columns))
        parents = torch.where(is_node, above, PADDING_PARENT)
        first, count = self._expanded_tokens.shape[1], nodes.shape[1]
        numbers = torch.arange(first, first + count, device=nodes.device).expand_as(nodes)
        # Padding writes to the root's column what it holds already (the root is expanded alone, in the first call).
        self._numbers.scatter_(1, torch.where(is_node, nodes, 0), torch.where(is_node, numbers, self._numbers[:, :1]))
        depths = torch.where(is_node, self.take(self.depths, nodes), 0)
        self._expanded_tokens = torch.cat([self._expanded_tokens, self.take(self.tokens, nodes)], 1)
        self._expanded_depths = torch.cat([self._expanded_depths, depths], 1)
        ancestors = torch.eye(count, dtype=torch.bool, device=nodes.device).expand(len(nodes), -1, -1)
        if first:
            above = parents.clamp(min=0).unsqueeze(-1).expand(-1, -1, first)
            ancestors = torch.cat([self._ancestors.gather(1, above), ancestors], -1)
        ancestors = ancestors & is_node.unsqueeze(-1)
        self._ancestors = torch.cat([torch.nn.functional.pad(self._ancestors, (0, count)), ancestors], 1)
        return Frontier(parents, ancestors, self._expanded_tokens, self._expanded_depths)

    def add(
        self,
        nodes: Int[Tensor, "B F"],
        chosen: Children,
        values: Float[Tensor, "B F k"],
        columns: Int[Tensor, "*B w"],
    ) -> Int[Tensor, "B w"]:
        """Add a level of children; returns their columns.

        Args:
            nodes: their parents, -2 for padding.
            chosen: the children of these.
            values: the children's path values.
            columns: [w] or [B, w] into the F * k children: those to be added, in this order. Siblings must keep their
                verification order, and of sampled siblings only later ones may be left out.
        """
        columns = columns.expand(nodes.shape[0], -1)
        k = chosen.tokens.shape[-1]
        parents = nodes.gather(1, columns // k)
        is_real = chosen.is_real.flatten(1).gather(1, columns) & self._is_node(parents)
        draft_index, is_sampled = self._index_distributions(chosen, columns)
        first = self.tokens.shape[1]
        self._append(
            tokens=torch.where(is_real, chosen.tokens.flatten(1).gather(1, columns), 0),
            parents=torch.where(is_real, parents, PADDING_PARENT),
            values=torch.where(is_real, values.flatten(1).gather(1, columns), 0.0),
            draft_index=torch.where(is_real, draft_index, POINT_MASS),
            flags=is_real & is_sampled & chosen.is_without_replacement,
        )
        return torch.arange(first, self.tokens.shape[1], device=nodes.device).expand_as(columns)

    def grow(self, nodes: Int[Tensor, "B F"], widths: Sequence[int], children: str) -> Int[Tensor, "B w"]:
        """Expand `nodes` and add `widths[f]` children of each: their columns, node by node."""
        proposal = self.expand(nodes)
        resolved = resolve_children(children, proposal, self._source.is_sampling)
        chosen = choose_children(proposal, widths, resolved, self._source.generator)
        values = self.take(self.values, nodes).unsqueeze(-1) * chosen.probs
        k = chosen.tokens.shape[-1]
        columns = [k * node + rank for node, width in enumerate(widths) for rank in range(width)]
        return self.add(nodes, chosen, values, torch.tensor(columns, device=nodes.device))

    def build(
        self, keep: Bool[Tensor, "B M"] | None = None, max_nodes: int | None = None, is_width_fixed: bool = True
    ) -> TreeBatch:
        """The trees of the collected nodes.

        Args:
            keep: the nodes wanted, which must hold their ancestors; None keeps all.
            max_nodes: no row keeps more than these, root included; an accelerator is then not asked how many there are.
            is_width_fixed: see `TokenTree`.
        """
        is_node = self.parents != PADDING_PARENT
        batch = TreeBatch(
            tokens=self.tokens,
            parents=self.parents,
            draft_probs=torch.cat(self._probs) if self._probs else None,
            draft_index=self._draft_index if self._probs else None,
            is_without_replacement=self._flags if self._probs else None,
            is_width_fixed=is_width_fixed,
            values=self.values,
        )
        width = None if self.is_on_host else min(max_nodes or self.tokens.shape[1], self.tokens.shape[1])
        return batch.keep_nodes(is_node if keep is None else is_node & keep, width)

    def _is_node(self, nodes: Int[Tensor, "B w"]) -> Bool[Tensor, "B w"]:
        return (nodes >= 0) & (self.take(self.parents, nodes) != PADDING_PARENT)

    def _index_distributions(
        self, chosen: Children, columns: Int[Tensor, "B w"]
    ) -> tuple[Int[Tensor, "B w"], Bool[Tensor, "B w"]]:
        """The distribution row of every child, -1 for selected ones, and whether it was sampled."""
        if chosen.draft_probs is None:
            return torch.full_like(columns, POINT_MASS), torch.zeros_like(columns, dtype=torch.bool)
        num_rows, num_nodes, _ = chosen.draft_probs.shape
        k = chosen.tokens.shape[-1]
        is_sampled = columns % k < chosen.num_sampled
        first = sum(map(len, self._probs)) + num_nodes * torch.arange(num_rows, device=columns.device).unsqueeze(1)
        self._probs.append(chosen.draft_probs.flatten(0, 1))
        return torch.where(is_sampled, first + columns // k, POINT_MASS), is_sampled

    def _append(self, tokens: Tensor, parents: Tensor, values: Tensor, draft_index: Tensor, flags: Tensor) -> None:
        self.tokens = torch.cat([self.tokens, tokens], 1)
        self.parents = torch.cat([self.parents, parents], 1)
        self.depths = torch.cat([self.depths, self.take(self.depths, parents) + 1], 1)
        self.values = torch.cat([self.values, values.to(self.values.dtype)], 1)
        self._draft_index = torch.cat([self._draft_index, draft_index], 1)
        self._flags = torch.cat([self._flags, flags], 1)
        self._numbers = torch.cat([self._numbers, torch.full_like(tokens, PADDING_PARENT)], 1)
