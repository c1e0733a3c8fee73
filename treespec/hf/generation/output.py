"""What a call of `generate` returns."""

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import Cache, DynamicCache, StaticCache
from transformers.generation.utils import GenerateDecoderOnlyOutput

from treespec.errors import TreespecWarning
from treespec.hf.cache.growing import use_dynamic_layers
from treespec.hf.generation.call import Prepared
from treespec.hf.generation.output_scores import OutputScores
from treespec.hf.introspect import CACHE_NAME
from treespec.hf.models.make_scorer import AnyScorer

Output = Tensor | GenerateDecoderOnlyOutput


def final_cache(call: Prepared, target: AnyScorer) -> Cache | None:
    """The cache of a single row, as plain decoding would leave it; None for a batch, whose rows end raggedly.

    An empty `DynamicCache` that the caller gave receives the text's keys and values.
    """
    if (
        isinstance(call.cache, StaticCache)
        and call.cache is not target.cache
        and call.config.cache_implementation is None
    ):
        warnings.warn(
            "the given StaticCache stays empty: pass a DynamicCache to continue from it, or none",
            TreespecWarning,
            stacklevel=2,
        )
    if call.num_rows > 1:
        return None
    if target.cache is not None:
        use_dynamic_layers(target.cache)
    if isinstance(call.cache, DynamicCache) and isinstance(target.cache, DynamicCache):
        call.cache.layers[:] = target.cache.layers
        return call.cache
    return target.cache


def output(
    call: Prepared,
    emitted: Sequence[Sequence[int]],
    scores: OutputScores,
    cache: Cache | None,
    states: tuple[tuple[Tensor, ...], ...] | None,
) -> Output:
    """What `generate` returns for the tokens that every row emitted."""
    rows = [torch.tensor(tokens, dtype=torch.int64, device="cpu") for tokens in emitted]
    pad = getattr(call.config, "_pad_token_tensor", None)
    padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=0 if pad is None else int(pad))
    sequences = torch.cat([call.input_ids, padded.to(call.input_ids)], dim=1)
    if not call.config.return_dict_in_generate:
        return sequences
    lengths = list(map(len, emitted))
    return GenerateDecoderOnlyOutput(
        sequences=sequences,  # pyright: ignore[reportArgumentType]
        scores=scores.stacked("scores", lengths),  # pyright: ignore[reportArgumentType]
        logits=scores.stacked("logits", lengths),  # pyright: ignore[reportArgumentType]
        hidden_states=states,  # pyright: ignore[reportArgumentType]
        **{CACHE_NAME: cache},  # pyright: ignore[reportArgumentType]
    )
