"""Causal language models as drafters: as they are, or with another tokenizer, a static cache or compiled passes."""

import warnings
from collections.abc import Mapping
from typing import Any

from transformers import PreTrainedModel

from treespec.checks import check_count, check_flag
from treespec.drafters import DraftModel, ReEncoding, SharedVocabulary
from treespec.drafters.model.token_map import Translator, shared_tokens
from treespec.errors import ConfigError, TreespecWarning
from treespec.hf.loading.tokenizers import Spelling
from treespec.hf.models.compiled_target import compiled_scorer
from treespec.hf.models.make_scorer import make_scorer
from treespec.protocols import CausalScorer

INTERSECTION, RE_ENCODING = "intersection", "re-encoding"
SMALL_SHARE = 0.1
"""With a smaller share of the smaller vocabulary a draft model can propose few tokens, which a warning says."""


def make_draft_model(
    model: PreTrainedModel,
    *,
    tokenizer: Any = None,
    target_tokenizer: Any = None,
    method: str = INTERSECTION,
    is_same_tokenizer: bool = False,
    static_cache_len: int | None = None,
    compile: bool | Mapping[str, Any] = False,
    max_length: int | None = None,
) -> DraftModel | ReEncoding:
    """A drafter from a causal language model.

    `treespec.TreeSpeculation(model)` is enough for a model with the target's vocabulary; here are the options.

    Args:
        tokenizer: the draft model's own, where it is not the target's.
        target_tokenizer: the target's; both or neither.
        method: with two tokenizers, "intersection" (the distribution is restricted to the shared tokens) or
            "re-encoding" (the draft's text is cut into the target's tokens; for greedy decoding).
        is_same_tokenizer: the draft model has the target's tokenizer although its head has another size: heads are
            often padded, and the padding is then cut off or left without probability.
        static_cache_len: slots of a cache of fixed size, None for a growing one. It needs room for the longest text in
            draft tokens, and for the nodes of one step's passes, each rounded up to a power of two; when it is full,
            the target decodes alone.
        compile: run the passes over new nodes through `torch.compile`, with a static cache only; a mapping holds its
            options. There is one compilation per number of rows and power of two up to the widest pass.
        max_length: see `DraftModel`.

    Raises:
        ConfigError: one tokenizer without the other, both for one and the same, an unknown method, tokenizers that
            share no token, `compile` without a static cache, or something that is not a model.
        UnsupportedModelError: see `make_scorer`.
    """
    codecs = None
    if _are_given(tokenizer, target_tokenizer, method, is_same_tokenizer):
        codecs = Spelling(tokenizer), Spelling(target_tokenizer)
    vocabulary = _intersection(*codecs) if codecs and method == INTERSECTION else None
    scorer = _scorer(model, static_cache_len, compile)
    if codecs and method == RE_ENCODING:
        return ReEncoding(scorer, *codecs, max_length=max_length)
    if is_same_tokenizer:
        vocabulary = SharedVocabulary.of_one_tokenizer(scorer.vocab_size)
    return DraftModel(scorer, max_length, vocabulary)


def _are_given(tokenizer: Any, target_tokenizer: Any, method: str, is_same_tokenizer: bool) -> bool:
    """Whether there are two tokenizers. Raises `ConfigError`: they are not what the method needs."""
    if method not in (INTERSECTION, RE_ENCODING):
        raise ConfigError(f"method must be {INTERSECTION!r} or {RE_ENCODING!r}, got {method!r}")
    are_given = tokenizer is not None
    if are_given != (target_tokenizer is not None):
        raise ConfigError("tokenizer (the draft model's) and target_tokenizer come together: give both, or neither")
    if check_flag("is_same_tokenizer", is_same_tokenizer) and are_given:
        raise ConfigError("is_same_tokenizer=True needs no tokenizers: leave them out, or leave it out")
    if method == RE_ENCODING and not are_given:
        raise ConfigError("method 're-encoding' needs tokenizer= (the draft model's) and target_tokenizer=")
    return are_given


def _scorer(model: PreTrainedModel, static_cache_len: int | None, compile: bool | Mapping[str, Any]) -> CausalScorer:
    if static_cache_len is None:
        if compile is not False:
            raise ConfigError("compile=... needs static_cache_len=...: a growing cache has another shape at every pass")
        return make_scorer(model)
    check_count("static_cache_len", static_cache_len)
    return compiled_scorer(model, static_cache_len, compile)


def _intersection(draft: Spelling, target: Spelling) -> SharedVocabulary:
    """The shared tokens of two tokenizers, with a warning where these are few."""
    draft_ids = shared_tokens(target, draft)
    vocabulary = SharedVocabulary(draft_ids, Translator(target, draft, draft_ids))
    num_shared = int((draft_ids >= 0).sum())
    share = num_shared / min(len(target.pieces), len(draft.pieces))
    if share < SMALL_SHARE:
        warnings.warn(
            f"the tokenizers share {num_shared} tokens, {share:.1%} of the smaller vocabulary: the draft model can "
            "propose few by method='intersection'; when decoding greedily try method='re-encoding'",
            TreespecWarning,
            stacklevel=3,
        )
    return vocabulary
