"""`SpeculativeDecoder`: text in, text out with two models, on the same engine with chains."""

import math
from typing import Any

import torch

from treespec.checks import check_count, check_number
from treespec.hf.generation.speculation import TreeSpeculation, generate
from treespec.hf.introspect import input_device
from treespec.hf.loading.models import load_model, load_tokenizer
from treespec.policies import Chain


class SpeculativeDecoder:
    """Text in, text out, with a draft and a target model named as for `from_pretrained`.

    The sampling is exact (rejected tokens are replaced from the residual distribution) and an end-of-sequence token
    stops the text also where it comes in the middle of a block.

    Args:
        draft_model_name: a hub name or folder; the vocabulary must be the target's.
        target_model_name: a hub name or folder; its tokenizer is used.
        num_speculative_tokens: the chain's length, draft tokens a step.
        model_kwargs: passed to both `from_pretrained` calls (`dtype`, `device_map`, ...).

    Raises:
        ConfigError: `num_speculative_tokens` is not a positive int.
        CheckpointError: a model or the tokenizer cannot be loaded.
        VocabularyMismatchError: at the first `generate`, when the vocabularies differ.
    """

    def __init__(
        self, draft_model_name: str, target_model_name: str, num_speculative_tokens: int = 4, **model_kwargs: Any
    ) -> None:
        chain = Chain(num_speculative_tokens)  # Checked before anything large is loaded.
        self.tokenizer = load_tokenizer(target_model_name)
        self.target_model = load_model(target_model_name, **model_kwargs)
        self.draft_model = load_model(draft_model_name, **model_kwargs)
        self.speculation = TreeSpeculation(self.draft_model, tree=chain)

    def generate(self, prompt: str, max_tokens: int = 100, *, temperature: float = 1.0, seed: int | None = None) -> str:
        """Continue a prompt by at most `max_tokens` tokens and return the continuation's text.

        A temperature of 0 decodes greedily; without a seed one is drawn from torch's default generator.

        Raises `ConfigError`: a temperature that is negative or not finite, no tokens to generate, or a wrong seed.
        """
        check_number("temperature", temperature, lambda value: 0 <= value < math.inf, "be a finite number >= 0")
        check_count("max_tokens", max_tokens)
        inputs = self.tokenizer(prompt, return_tensors="pt").to(input_device(self.target_model))
        options: dict[str, Any] = {"do_sample": False, "max_new_tokens": max_tokens}
        if temperature:
            options |= {"do_sample": True, "temperature": temperature, "top_k": 0}
        with torch.inference_mode():
            arguments = (self.target_model, inputs, self.speculation)
            out: Any = generate(*arguments, tokenizer=self.tokenizer, seed=seed, **options)
        return self.tokenizer.decode(out[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
