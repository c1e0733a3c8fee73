"""Tiny random Gemma 4 targets with assistants, and a slow plain reading of them by transformers' own passes."""

from typing import Any

import pytest
import torch
import transformers
from helpers import zoo

NAMES = {"gemma4": "Gemma4Assistant", "gemma4 unified": "Gemma4UnifiedAssistant"}
with_assistants = pytest.mark.skipif(
    not hasattr(transformers, "Gemma4AssistantForCausalLM"), reason="this transformers has no Gemma 4 assistants"
)


def make_target(**options: Any) -> Any:
    """Layers of two types, the last two without keys of their own; `options`: of the configuration."""
    known = zoo.BY_NAME["gemma4_text"]
    return zoo.build(zoo.Architecture(known.model_type, dict(known.options) | options))


def make_assistant(target: Any, name: str = "gemma4", is_clustered: bool = False, seed: int = 0, **options: Any) -> Any:
    """Three layers; clustered: logits of the likeliest 3 of 8 parts of the vocabulary only."""
    own = target.config
    sizes = zoo.SIZES | {
        "vocab_size": own.vocab_size,
        "hidden_size": 16,
        "num_hidden_layers": 3,
        "num_kv_shared_layers": 3,
        "head_dim": 8,
        "global_head_dim": 8,
        "hidden_size_per_layer_input": 0,
        "vocab_size_per_layer_input": 0,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        "sliding_window": own.sliding_window,
        "tie_word_embeddings": True,
    }
    text = transformers.AutoConfig.for_model("gemma4_text", **sizes)
    config = getattr(transformers, f"{NAMES[name]}Config")(
        text_config=text,
        **{
            "backbone_hidden_size": own.hidden_size,
            "use_ordered_embeddings": is_clustered,
            "num_centroids": 8,
            "centroid_intermediate_top_k": 3,
        }
        | options,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        assistant = getattr(transformers, f"{NAMES[name]}ForCausalLM")(config).eval()
        with torch.no_grad():
            for weight in assistant.parameters():
                weight.add_(0.2 * torch.randn_like(weight))
            if is_clustered:
                assistant.masked_embedding.token_ordering.copy_(torch.randperm(own.vocab_size))
    return assistant


class PlainAssistant:
    """Every pass is transformers' own over keys and values that the target computes again."""

    def __init__(self, target: Any, assistant: Any) -> None:
        self.target, self.assistant = target, assistant
        self._states: Any = None
        self._shared: Any = None

    @torch.no_grad()
    def logits(self, states, tokens, path, first=0):
        """float64 [V] after the drafted tokens `path`; states [n - 1, H]: the target's before the last of `tokens`."""
        if self._states is not states:
            read = self.target(torch.tensor([tokens[:-1]]), return_shared_kv_states=True, use_cache=False)
            self._states, self._shared = states, read.shared_kv_states
        shared, before = self._shared, states[-1].reshape(1, 1, -1)
        out: Any = None
        for token in [tokens[-1], *path]:
            embedded = self.target.get_input_embeddings()(torch.tensor([[token]]))
            out = self.assistant(
                inputs_embeds=torch.cat([embedded, before], -1),
                position_ids=torch.tensor([[len(tokens) - 1]]),
                shared_kv_states=shared,
            )
            before = out.last_hidden_state
        return out.logits[0, 0].double()
