"""The textbook's two-model class, on the same engine in chain mode."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from treespec.errors import ConfigError
from treespec.hf.speculation import TreeSpeculation
from treespec.policies import Chain


class SpeculativeDecoder:
    """Text in, text out, with a draft and a target model named as for `from_pretrained`.

    The sampling is exact (rejected tokens are replaced from the residual distribution) and an end-of-sequence token
    stops the text wherever it stands in a block.

    Args:
        draft_model_name: a hub name or folder; the vocabulary must be the target's.
        target_model_name: a hub name or folder; its tokenizer is used.
        num_speculative_tokens: the chain's length, draft tokens a step.
        model_kwargs: passed to both `from_pretrained` calls (`dtype`, `device_map`, ...).

    Raises:
        ConfigError: `num_speculative_tokens` is not a positive int.
        VocabularyMismatchError: at the first `generate`, when the vocabularies differ.
    """

    def __init__(
        self, draft_model_name: str, target_model_name: str, num_speculative_tokens: int = 4, **model_kwargs: Any
    ) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(target_model_name)
        self.target_model = AutoModelForCausalLM.from_pretrained(target_model_name, **model_kwargs)
        self.draft_model = AutoModelForCausalLM.from_pretrained(draft_model_name, **model_kwargs)
        self.speculation = TreeSpeculation(self.draft_model, tree=Chain(num_speculative_tokens))

    def generate(self, prompt: str, max_tokens: int = 100, *, temperature: float = 1.0, seed: int | None = None) -> str:
        """Continue a prompt by at most `max_tokens` tokens and return the continuation's text.

        Args:
            prompt: not empty.
            max_tokens: at least 1.
            temperature: 0 decodes greedily.
            seed: of this call; None takes one draw from torch's default generator.

        Raises:
            ConfigError: a negative temperature or no tokens to generate.
        """
        if temperature < 0 or max_tokens < 1:
            raise ConfigError(f"need temperature >= 0 and max_tokens >= 1, got {temperature} and {max_tokens}")
        inputs = self.tokenizer(prompt, return_tensors="pt").to(self.target_model.device)
        sampling = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {"do_sample": False}
        with self.speculation.overridden(seed=seed), torch.inference_mode():
            out = self.target_model.generate(  # pyright: ignore[reportAttributeAccessIssue]
                **inputs, max_new_tokens=max_tokens, custom_generate=self.speculation, **sampling
            )
        return self.tokenizer.decode(out[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
