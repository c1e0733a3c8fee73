"""Rounds of tree, commit, tree played on a scorer and its cache, compared with plain passes; and bugs to plant in them.

The oracle is plain transformers without a cache: one row per path, no mask, no positions. Paths of different lengths
share a batch by padding on the right, which a causal model never looks at.
"""

import random
from collections.abc import Sequence
from itertools import pairwise

import torch
from helpers.zoo import VOCAB_SIZE
from transformers import Cache, DynamicCache, PreTrainedModel

from treespec.hf.attention import folded
from treespec.hf.attention import mask as mask_module
from treespec.hf.cache import slot_cache
from treespec.hf.cache.caches import FilledLayer, filled_layers
from treespec.hf.introspect import CACHE_NAME
from treespec.hf.models.capability import keeps_states
from treespec.hf.recurrent.layers import StateLayer
from treespec.hf.recurrent.scorer import StateScorer
from treespec.protocols import Capability, CausalScorer
from treespec.tree import TokenTree, TreeBatch

PROMPT_LENGTH = 26
RAGGED_LENGTHS = [PROMPT_LENGTH, PROMPT_LENGTH - 4, PROMPT_LENGTH - 9]
NAMES = ("llama", "mistral", "gemma3_text", "gpt2", "deepseek_v3", "gemma3n_text")
"""Architectures of the zoo with every kind of cache and mask: plain, windows, some layers' windows, learned positions,
keys and values of several sizes, shared layers."""


@torch.no_grad()
def uncached_logits(model: PreTrainedModel, tokens: list[int]) -> torch.Tensor:
    """[L, V], the oracle."""
    return model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]


@torch.no_grad()
def tree_logits(model: PreTrainedModel, texts: Sequence[list[int]], trees: Sequence[TokenTree]) -> list[torch.Tensor]:
    """Per tree behind its text the logits [N, V] of its nodes, each by an uncached pass along its path."""
    paths = [(row, path) for row, tree in enumerate(trees) for path in tree.leaf_paths()]
    rows = [torch.tensor(texts[row] + [trees[row].token(node) for node in path]) for row, path in paths]
    batch = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=3)
    logits = model(input_ids=batch, use_cache=False).logits
    expected = [logits.new_empty(tree.num_nodes, logits.shape[-1]) for tree in trees]
    for (row, path), found in zip(paths, logits, strict=True):
        start = len(texts[row])
        expected[row][list(path)] = found[start : start + len(path)]
    return expected


def prefilled(scorer, ids: torch.Tensor):
    """The scorer behind texts int64 [B, P] without padding."""
    scorer.prefill(ids, torch.ones_like(ids, dtype=torch.bool))
    return scorer


class Game:
    """Rows of random text, random trees behind them and random paths committed, the same for a seed."""

    def __init__(self, model: PreTrainedModel, scorer: CausalScorer, prompt_lengths: list[int], seed: int = 0) -> None:
        self._model, self._scorer, self._random = model, scorer, random.Random(seed)
        self.rows = [self._tokens(length) for length in prompt_lengths]
        self.worst = 0.0
        """The largest difference of any node's logits from an uncached pass along its path."""
        width = max(prompt_lengths)
        padded = [[0] * (width - len(row)) + row for row in self.rows]
        mask = [[False] * (width - len(row)) + [True] * len(row) for row in self.rows]
        scorer.prefill(torch.tensor(padded, dtype=torch.int64), torch.tensor(mask, dtype=torch.bool))

    def play(self, num_rounds: int, max_nodes: int = 8, num_passes: int = 2, is_root_first: bool = False) -> float:
        for _ in range(num_rounds):
            self.round(max_nodes, num_passes, is_root_first)
        return self.worst

    def round(self, max_nodes: int = 8, num_passes: int = 1, is_root_first: bool = False) -> None:
        """Score one tree per row, in one pass or several; compare every node; commit a random path of every row.

        `is_root_first`: one pass more, over the roots alone.
        """
        trees = [self._tree(self._random.randint(1, max_nodes)) for _ in self.rows]
        batch = TreeBatch.from_trees(trees)
        width = batch.max_nodes
        cuts = sorted({0, width, int(is_root_first), *(self._random.randint(1, width) for _ in range(num_passes - 1))})
        parts = [(batch.tokens[:, start:end], batch.parents[:, start:end]) for start, end in pairwise(cuts)]
        logits = torch.cat([self._scorer.extend(*part).logits for part in parts], dim=1)
        assert logits.isfinite().all()
        for row, expected in enumerate(tree_logits(self._model, self.rows, trees)):
            self.worst = max(self.worst, float((logits[row, : len(expected)] - expected).abs().max()))
        paths = [tree.path_to(self._random.randrange(tree.num_nodes)) for tree in trees]
        self._scorer.commit(paths)
        for row, tree, path in zip(self.rows, trees, paths, strict=True):
            row += [tree.token(node) for node in path]

    def select_rows(self, rows: list[int]) -> None:
        self._scorer.select_rows(rows)
        self.rows = [list(self.rows[row]) for row in rows]

    def cache_error(self) -> float:
        """See `cache_error`; of a `TreeScorer`."""
        rows = [torch.tensor(row) for row in self.rows]
        return cache_error(self._model, self._scorer.cache, self._scorer._state.slots.mask, rows)

    def _tree(self, size: int) -> TokenTree:
        """A tree, chain or single node, as the scorer can."""
        capability = self._scorer.capability
        size = 1 if capability == Capability.PLAIN else size
        parents = [i - 1 if capability < Capability.TREE else self._random.randrange(i) for i in range(1, size)]
        return TokenTree(torch.tensor(self._tokens(size)), torch.tensor([-1, *parents]))

    def _tokens(self, length: int) -> list[int]:
        return [self._random.randrange(3, VOCAB_SIZE) for _ in range(length)]


@torch.no_grad()
def cache_error(model: PreTrainedModel, cache: Cache, slot_mask: torch.Tensor, rows: Sequence[torch.Tensor]) -> float:
    """An integrity check: how far the committed slots are from the states of a fresh pass over the same tokens.

    Args:
        model: whose cache it is.
        cache: after a commit.
        slot_mask: bool [B, S], the committed slots.
        rows: per row its committed tokens, int64 [length].

    Returns:
        The largest difference of any key, value or state; infinite when a row has not as many slots as tokens.
    """
    worst = 0.0
    for row, tokens in enumerate(rows):
        slots = slot_mask[row].nonzero().squeeze(1)
        if len(slots) != len(tokens):
            return float("inf")
        if not len(tokens):
            continue
        fresh = _fresh_cache(model, tokens.unsqueeze(0))
        for ours, theirs in zip(_filled(cache), _filled(fresh), strict=True):
            for states, expected in ((ours.keys, theirs.keys), (ours.values, theirs.values)):
                kept = states[row].index_select(-2, slots.to(states.device))
                worst = max(worst, float((kept - expected[0]).abs().max()))
        for kept, expected in zip(recurrent_states(cache), recurrent_states(fresh), strict=True):
            worst = max(worst, float((kept[row] - expected[0]).abs().max()))
    return worst


def _fresh_cache(model: PreTrainedModel, ids: torch.Tensor) -> Cache:
    if keeps_states(model):
        return prefilled(StateScorer(model), ids).cache
    fresh = DynamicCache()
    model(input_ids=ids, **{CACHE_NAME: fresh}, use_cache=True)
    return fresh


def recurrent_states(cache: Cache) -> list[torch.Tensor]:
    """The states of all layers, first those of convolutions, as they are."""
    layers = [layer for layer in cache.layers if isinstance(layer, StateLayer)]
    states = [[*layer.conv_states.values(), *layer.recurrent_states.values()] for layer in layers]
    return [state for layer in states for state in layer if state is not None]


def _filled(cache: Cache) -> list[FilledLayer]:
    return filled_layers(Cache(layers=[layer for layer in cache.layers if type(layer) is not StateLayer]))


_right = mask_module.pending_attention


def plant_mask(change):
    """`change(attention of a chain, right attention)` gives the mask and the positions in place of the right ones."""

    def plant(monkeypatch):
        def wrong(slots, parents, num_new, layout, dtype):
            right = _right(slots, parents, num_new, layout, dtype)
            chain = torch.arange(-1, parents.shape[1] - 1).expand_as(parents)
            as_chain = _right(slots, chain, num_new, layout, dtype)
            mask, positions = change(as_chain, right)
            return mask_module.TreeAttention(mask, positions, right.key_positions)

        monkeypatch.setattr("treespec.hf.models.tree_scorer.pending_attention", wrong)

    return plant


def plant(owner, name, wrong):
    return lambda monkeypatch: monkeypatch.setattr(owner, name, wrong)


def _own(parents):
    return torch.eye(parents.shape[1], dtype=torch.bool).expand(parents.shape[0], -1, -1)


def _key_slots(slots, pending):
    num_keys = slots.mask.shape[1] + pending.shape[1]
    return torch.arange(num_keys).expand(len(pending), num_keys)


def _cut_only(layers, num_slots, paths):
    slot_cache._cut(layers, num_slots + max(len(path) for path in paths))


def _no_holes(paths, device):
    return torch.ones(len(paths), max(map(len, paths)), dtype=torch.bool)


def _interleaved(mask, num_groups, dtype, _):
    additive = torch.zeros(mask.shape, dtype=dtype).masked_fill(~mask, -torch.inf)
    return additive.repeat_interleave(num_groups, 2)


PLANTED = {
    "ancestors missing": ("llama", plant(mask_module, "ancestor_mask", _own)),
    "siblings seen": ("llama", plant_mask(lambda chain, right: (chain.mask, right.position_ids))),
    "positions by slot": ("llama", plant_mask(lambda chain, right: (right.mask, chain.position_ids))),
    "window forgotten": ("mistral", plant(mask_module, "_limit", lambda allowed, *_: allowed)),
    "window by slot": ("mistral", plant(mask_module, "_key_positions", _key_slots)),
    "compaction forgotten": ("llama", plant(slot_cache, "keep_paths", _cut_only)),
    "folded mask in the wrong order": ("llama", plant(folded, "_made_of", _interleaved)),
    "holes forgotten": ("llama", plant(slot_cache, "path_mask", _no_holes)),
}
"""By name, the architecture in which it shows, and what plants it."""
