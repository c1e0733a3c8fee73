"""Tiny random models for the tests: real architectures, small enough for milliseconds."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from treespec import SuffixLookup, TokenRecycling, TreeSpeculation


def tiny_llama(vocab_size: int = 64, seed: int = 0, num_layers: int = 2, **options) -> LlamaForCausalLM:
    """A random llama whose logits have a standard deviation above one, so that its choices are not near-ties."""
    settings = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "initializer_range": 0.3,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": 0,
    }
    config = LlamaConfig(vocab_size=vocab_size, num_hidden_layers=num_layers, **settings | options)
    state = torch.get_rng_state()
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config).eval()
    torch.set_rng_state(state)
    model.generation_config.pad_token_id = 0
    return model


def noisy_copy(model: LlamaForCausalLM, noise: float = 0.05, seed: int = 1) -> LlamaForCausalLM:
    """A draft of the model: the same weights with noise, so that it agrees often but not always."""
    draft = LlamaForCausalLM(model.config).eval()
    draft.load_state_dict(model.state_dict())
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in draft.parameters():
            weight += noise * weight.std() * torch.randn(weight.shape, generator=generator)
    return draft


def padded(ids: torch.Tensor, paddings: list[int]) -> dict[str, torch.Tensor]:
    """Prompts whose rows begin with so many pad tokens 0 in place of their own, as arguments of `generate`."""
    ids, mask = ids.clone(), torch.ones_like(ids)
    for row, count in enumerate(paddings):
        ids[row, :count] = mask[row, :count] = 0
    return {"input_ids": ids, "attention_mask": mask}


def prompt(num_rows: int = 1, length: int = 12, vocab_size: int = 64, seed: int = 3) -> torch.Tensor:
    """Random ids int64 [num_rows, length], none of them the pad token 0."""
    return torch.randint(1, vocab_size, (num_rows, length), generator=torch.Generator().manual_seed(seed))


def lookups(**options):
    """Decoding by two lookups, merged."""
    return TreeSpeculation([TokenRecycling(), SuffixLookup()], **{"tree": 8} | options)


def identical(model, inputs, speculation=None, times=1, **options):
    """The statistics of the last of some calls by trees, after which the drafters know the text: greedy output is plain
    `generate`'s. `model` may be a function that makes one for every call; `inputs` may be ids."""
    fresh = model if not isinstance(model, torch.nn.Module) else lambda: model
    inputs = {"input_ids": inputs} if isinstance(inputs, torch.Tensor) else inputs
    options = {"max_new_tokens": 16, "do_sample": False, "pad_token_id": 0, **inputs, **options}
    plain = fresh().generate(**options)
    speculation = speculation or lookups()
    for _ in range(times):
        assert torch.equal(fresh().generate(**options, custom_generate=speculation), plain)
    return speculation.stats
