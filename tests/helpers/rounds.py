"""Tiny attention models; rounds of tree, commit, tree played on a scorer and its cache, compared with plain passes."""

import random
from collections.abc import Sequence

import torch
from transformers import (
    AutoModelForCausalLM,
    Cache,
    DeepseekV3Config,
    DynamicCache,
    Gemma3nTextConfig,
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    PreTrainedModel,
)

from treespec.hf.cache.caches import filled_layers
from treespec.hf.introspect import CACHE_NAME
from treespec.protocols import Capability, CausalScorer

VOCAB_SIZE, WINDOW, PROMPT_LENGTH, NUM_POSITIONS = 64, 8, 26, 128
RAGGED_LENGTHS = [PROMPT_LENGTH, PROMPT_LENGTH - 4, PROMPT_LENGTH - 9]

_SIZES = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": NUM_POSITIONS,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
}
_WINDOWS = {"head_dim": 8, "sliding_window": WINDOW}
_SLIDING, _FULL = "sliding_attention", "full_attention"
_LATENT = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 16,
    "first_k_dense_replace": 1,
}
_SHARED = {
    "num_hidden_layers": 4,
    "layer_types": [_SLIDING, _FULL, _SLIDING, _FULL],
    "num_kv_shared_layers": 2,
    "vocab_size_per_layer_input": VOCAB_SIZE,
    "hidden_size_per_layer_input": 8,
    "laurel_rank": 4,
    "activation_sparsity_pattern": [0.0] * 4,
}

CONFIGS = {
    "llama": lambda: LlamaConfig(**_SIZES),
    "mistral": lambda: MistralConfig(**_SIZES | _WINDOWS),
    "gemma3": lambda: Gemma3TextConfig(**_SIZES | _WINDOWS | {"layer_types": [_SLIDING, _FULL, _SLIDING]}),
    "gpt2": lambda: GPT2Config(vocab_size=VOCAB_SIZE, n_embd=32, n_layer=3, n_head=4, n_positions=NUM_POSITIONS),
    "deepseek_v3": lambda: DeepseekV3Config(**_SIZES | _LATENT),
    "gemma3n": lambda: Gemma3nTextConfig(**_SIZES | _WINDOWS | _SHARED),
}
NAMES = tuple(CONFIGS)


def build(name: str, attention: str = "sdpa") -> PreTrainedModel:
    """A random model whose logits have a standard deviation of about 1.4; the same weights at every call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(CONFIGS[name](), attn_implementation=attention).eval()
        with torch.no_grad():
            for weight in model.parameters():
                if weight.ndim > 1:
                    weight.normal_(0, 0.25)
    return model


def uncached_logits(model: PreTrainedModel, tokens: list[int]) -> torch.Tensor:
    """[L, V], the oracle."""
    with torch.no_grad():
        return model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]


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

    def play(self, num_rounds: int, max_nodes: int = 8, num_passes: int = 2) -> float:
        for _ in range(num_rounds):
            self.round(max_nodes, num_passes)
        return self.worst

    def round(self, max_nodes: int = 8, num_passes: int = 1) -> None:
        """Score one tree per row, in one pass or several; compare every node; commit a random path of every row."""
        sizes = [self._random.randint(1, max_nodes) for _ in self.rows]
        width = max(sizes)
        parents = [self._tree(size) + [-2] * (width - size) for size in sizes]
        tokens = [self._tokens(width) for _ in self.rows]
        cuts = sorted({width, *(self._random.randint(1, width) for _ in range(num_passes - 1))})
        scored = []
        for start, end in zip([0, *cuts], cuts, strict=False):
            part = torch.tensor(parents)[:, start:end]
            scored.append(self._scorer.extend(torch.tensor(tokens)[:, start:end], part).logits)
        self._compare(torch.cat(scored, dim=1), tokens, parents, sizes)
        paths = [path_to(self._random.randrange(size), above) for size, above in zip(sizes, parents, strict=True)]
        self._scorer.commit(paths)
        for row, path, fresh in zip(self.rows, paths, tokens, strict=True):
            row += [fresh[node] for node in path]

    def select_rows(self, rows: list[int]) -> None:
        self._scorer.select_rows(rows)
        self.rows = [list(self.rows[row]) for row in rows]

    def _compare(self, logits: torch.Tensor, tokens: list, parents: list, sizes: list[int]) -> None:
        assert logits.isfinite().all()
        for row, size in enumerate(sizes):
            for node in range(size):
                path = [tokens[row][i] for i in path_to(node, parents[row])]
                plain = uncached_logits(self._model, self.rows[row] + path)[-1]
                self.worst = max(self.worst, float((logits[row, node] - plain).abs().max()))

    def _tree(self, size: int) -> list[int]:
        if self._scorer.capability != Capability.TREE:
            return list(range(-1, size - 1))
        return [-1] + [self._random.randrange(node) for node in range(1, size)]

    def _tokens(self, length: int) -> list[int]:
        return [self._random.randrange(1, VOCAB_SIZE) for _ in range(length)]


def path_to(node: int, parents: list[int]) -> list[int]:
    path = [node]
    while parents[path[0]] >= 0:
        path.insert(0, parents[path[0]])
    return path


@torch.no_grad()
def cache_error(model: PreTrainedModel, cache: Cache, slot_mask: torch.Tensor, rows: Sequence[torch.Tensor]) -> float:
    """An integrity check: how far the committed slots are from the states of a fresh pass over the same tokens.

    Args:
        model: whose cache it is.
        cache: after a commit.
        slot_mask: bool [B, S], the committed slots.
        rows: per row its committed tokens, int64 [length].

    Returns:
        The largest difference of any key or value; infinite when a row has not as many slots as tokens.
    """
    worst = 0.0
    for row, tokens in enumerate(rows):
        slots = slot_mask[row].nonzero().squeeze(1)
        if len(slots) != len(tokens):
            return float("inf")
        if not len(tokens):
            continue
        fresh = DynamicCache()
        model(input_ids=tokens.unsqueeze(0), **{CACHE_NAME: fresh}, use_cache=True)
        for ours, theirs in zip(filled_layers(cache), filled_layers(fresh), strict=True):
            for states, expected in ((ours.keys, theirs.keys), (ours.values, theirs.values)):
                kept = states[row].index_select(-2, slots.to(states.device))
                worst = max(worst, float((kept - expected[0]).abs().max()))
    return worst
