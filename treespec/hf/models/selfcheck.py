"""Whether a model scores trees, chains or single tokens correctly in one pass, measured at its first use.

A small tree is scored after a short cached prefix, a path that is not the first child's is committed, and a second tree
is scored; all logits are compared with plain uncached passes along each path. A node's difference is the root mean
square over the vocabulary in units of the logits' standard deviation: unlike the largest difference it does not grow
with the vocabulary, and it separates rounding in bfloat16 (up to .1) from wrong masks, wrong positions and states that
mix siblings (.2 to 2). The tolerance is ten times what the model's own cached and uncached passes differ by, within
bounds: at least what rounding in its dtype explains, at most what would hide a wrong mask. Models whose activations are
quantised differ by more from the same plain pass with embeddings that are changed in their last bits: twice that is
allowed, below what a wrong ancestor makes (.6 to 1.4 there).
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from treespec.errors import LogitsError, TreespecError, UnsupportedModelError
from treespec.hf.attention.mask import WINDOW_FIELDS
from treespec.hf.introspect import ModelFacts, cache_in, is_multimodal, model_facts
from treespec.hf.models.capability import (
    Detection,
    MeasuredOnce,
    cached_logits,
    detect,
    keeps_states,
    single_tokens_only,
    undisturbed,
)
from treespec.hf.models.rounded_activations import rounds_activations
from treespec.hf.thread_patches import current, replaced
from treespec.protocols import Capability, CausalScorer
from treespec.tree import TokenTree

PREFIX_LENGTH = 8
MAX_CHECKED_WINDOW = 32
NUM_CONTINUED = 6
OWN_DIFFERENCE_FACTOR = 10.0
RESPONSE_FACTOR, LARGEST_RESPONSE, NUM_PERTURBED = 2.0, 0.6, 3
LEAST_TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-4, torch.float16: 0.03, torch.bfloat16: 0.15}
"""Eager attention rounds float64 to float32 inside; other shapes may run other kernels, or by luck the same ones."""
LARGEST_TOLERANCE = 0.25

Round = tuple[tuple[int, ...], tuple[int, ...]]
"""One pass: the parents of its nodes and the path that is committed after it."""

ROUNDS: dict[Capability, tuple[Round, ...]] = {
    Capability.TREE: (((-1, 0, 0, 1, 2, 2), (0, 2, 5)), ((-1, 0, 0, 1, 2), (0, 2, 4))),
    Capability.CHAIN: (((-1, 0, 1, 2), (0, 1)), ((-1, 0, 1), (0, 1, 2))),
    Capability.PLAIN: (((-1,), (0,)), ((-1,), (0,))),
}


Attempt = tuple[Capability, Callable[..., CausalScorer]]
"""A capability to try, and a factory of new scorers, given `max_cache_len`: slots of a static cache, or None."""

_results: MeasuredOnce[Detection] = MeasuredOnce()


def check_once(facts: ModelFacts, attempts: Sequence[Attempt], is_static: bool = False) -> Detection:
    """The first attempt whose logits are right; once per model, dtype, attention, adapters, weights, hooks and cache.

    Where the first attempt passes by the least tolerance that is all; else the effect of neighbours is measured, and
    the tolerance for rounding, see `self_check`.
    """
    return _results.get(facts, lambda: _check(facts, attempts, is_static), is_static)


def _check(facts: ModelFacts, attempts: Sequence[Attempt], is_static: bool) -> Detection:
    (first, make), least = attempts[0], least_tolerance(facts, facts.dtype)
    with suppress(TreespecError, RuntimeError, ValueError, TypeError, LookupError, AttributeError):
        scorer = make(max_cache_len=2 * MAX_CHECKED_WINDOW if is_static else None)
        error = float(round_errors(facts, scorer, check_prompt(facts), rounds_of(facts, first)).max())
        if error <= least:
            return Detection(first, "", least)
    return single_tokens_only(facts) or self_check(facts, attempts, is_static)


def self_check(model: PreTrainedModel | ModelFacts, attempts: Sequence[Attempt], is_static: bool = False) -> Detection:
    """Try scorers from the most capable to the least; returns the first capability whose logits are right.

    Raises `UnsupportedModelError`: single tokens were tried too, and are wrong as well.
    """
    facts = model_facts(model)
    reasons: list[str] = []
    with undisturbed(facts):
        prompt = check_prompt(facts)
        tolerance = tolerance_of(facts, prompt)
        num_slots = 2 * MAX_CHECKED_WINDOW if is_static else None
        for capability, make in attempts:
            name = capability.name.lower()
            try:
                scorer = make(max_cache_len=num_slots)
                error = float(round_errors(facts, scorer, prompt, rounds_of(facts, capability)).max())
            except torch.OutOfMemoryError:
                raise
            except (TreespecError, RuntimeError, ValueError, TypeError, LookupError, AttributeError) as failure:
                # Compilers put their whole output into the text of an error.
                first_line = (str(failure).splitlines() or [type(failure).__name__])[0][:200]
                reasons.append(f"{name} passes fail: {first_line}")
                continue
            # Single tokens are what plain decoding scores: they are wrong only where nothing but a fault explains it.
            if error <= (max(LARGEST_TOLERANCE, tolerance) if capability == Capability.PLAIN else tolerance):
                return Detection(capability, "; ".join(reasons), tolerance)
            reasons.append(
                f"{name} logits differ from path logits by {error:.2g} standard deviations, more than {tolerance:.2g}"
            )
    if attempts[-1][0] == Capability.PLAIN and not is_static:
        raise UnsupportedModelError(f"{facts.name} decodes wrongly from a transformers cache: {reasons[-1]}")
    return Detection(Capability.PLAIN, "; ".join(reasons), tolerance)


def rounds_of(facts: ModelFacts, capability: Capability) -> tuple[Round, ...]:
    """The rounds of a capability; where states are kept also single nodes, which are the model's own steps there."""
    return ROUNDS[capability] + (ROUNDS[Capability.PLAIN] if keeps_states(facts.model) else ())


def check_prompt(facts: ModelFacts) -> Int[Tensor, "1 P"]:
    """Committed tokens, without the first tree's root; more than the attention windows where these are short."""
    sizes = [getattr(facts.config, name, None) for name in WINDOW_FIELDS]
    short = [size for size in sizes if isinstance(size, int) and size <= MAX_CHECKED_WINDOW]
    return check_tokens(facts, max([PREFIX_LENGTH, *(size + 2 for size in short)]), seed=0)


def check_tokens(facts: ModelFacts, length: int, seed: int) -> Int[Tensor, "1 L"]:
    """Random ids from the middle of the vocabulary: special tokens are at its ends."""
    size = facts.config.vocab_size
    generator = torch.Generator("cpu").manual_seed(seed)
    return torch.randint(size // 8, max(size // 2, 1), (1, length), generator=generator, device="cpu").to(facts.device)


def tolerance_of(facts: ModelFacts, prompt: Int[Tensor, "1 P"]) -> float:
    """The rounding tolerance in standard deviations of the logits. Raises `LogitsError`: a plain pass gives NaN."""
    model = facts.model
    ids = torch.cat([prompt, check_tokens(facts, NUM_CONTINUED, seed=1)], dim=1)
    plain = _plain_logits(facts, ids, prompt.shape[1])[0]
    if plain.isnan().any():
        raise LogitsError(f"{facts.name} gives NaN logits for a plain pass: check its weights and its dtype")
    if keeps_states(model):  # transformers' Mamba continues wrongly with several tokens.
        cached = cached_logits(facts, ids, Capability.PLAIN, NUM_CONTINUED)[0]
    else:
        cache = {facts.cache_argument: cache_in(model(input_ids=prompt, use_cache=True))}
        cached = model(input_ids=ids[:, -NUM_CONTINUED:], **cache, use_cache=True).logits[0]
    own = float(largest_difference(cached, plain))
    least = least_tolerance(facts, plain.dtype)
    response = min(RESPONSE_FACTOR * _rounding_response(facts, ids, plain), LARGEST_RESPONSE)
    return max(min(max(OWN_DIFFERENCE_FACTOR * own, least), LARGEST_TOLERANCE), response)


def least_tolerance(facts: ModelFacts, dtype: torch.dtype) -> float:
    """The least tolerance for rounding in a dtype; that of bfloat16 where activations are rounded to 8 bits.

    There a few tokens may happen to move no activation by a step, which other tokens do.
    """
    dtype = torch.bfloat16 if rounds_activations(facts) else dtype
    return LEAST_TOLERANCE.get(dtype, LEAST_TOLERANCE[torch.bfloat16])


def _rounding_response(facts: ModelFacts, ids: Int[Tensor, "1 L"], plain: Float[Tensor, "M V"]) -> float:
    """The difference that a change of the embeddings in their last bits makes.

    Where activations are rounded to 8 bits, the smallest change moves some of them by a whole step, and the logits by
    .1 to .3; cached and uncached passes may agree by luck.
    """
    if facts.dtype not in (torch.float32, torch.float64) and not getattr(facts.model, "quantization_method", None):
        return 0.0  # The least tolerance of half precision covers more than this.
    generator = torch.Generator("cpu").manual_seed(0)

    embedding = facts.model.get_input_embeddings()
    embed = current(embedding, "forward")

    def perturbed(*args: Any, **kwargs: Any) -> Tensor:
        output = embed(*args, **kwargs)
        noise = torch.randn(output.shape, generator=generator, dtype=torch.float32, device="cpu").to(output.device)
        return (output * (1 + torch.finfo(output.dtype).eps * noise)).to(output.dtype)

    with replaced(embedding, "forward", perturbed):
        moved = _plain_logits(facts, ids.expand(NUM_PERTURBED, -1), ids.shape[1] - len(plain))
    return max(float(largest_difference(logits, plain)) for logits in moved)


def round_errors(
    facts: ModelFacts,
    scorer: CausalScorer,
    prompt: Int[Tensor, "1 P"],
    rounds: Sequence[Round],
    draw: Callable[[ModelFacts, int, int], Int[Tensor, "1 N"]] = check_tokens,
) -> Float[Tensor, " rounds"]:
    """Run rounds on a scorer; each one's largest difference of a node from an uncached pass, NaN if there is any.

    `draw`: the tokens int64 [1, N] of a round, given their number and a seed.
    """
    scorer.prefill(prompt, torch.ones_like(prompt, dtype=torch.bool))
    committed, scored, texts, counts = prompt[0], [], [], []
    for seed, (parents, path) in enumerate(rounds):
        tokens = draw(facts, len(parents), seed + 2)
        tree = TokenTree(tokens[0], torch.tensor(parents, device="cpu"))
        logits = scorer.extend(tokens, tree.parents.unsqueeze(0)).logits[0]
        paths = tree.leaf_paths()
        counts.append(len(paths))
        for nodes in map(list, paths):
            scored.append(logits[nodes])
            texts.append(torch.cat([committed, tokens[0, nodes]]))
        scorer.commit([path])
        committed = torch.cat([committed, tokens[0, list(path)]])
    # One pass for all: what follows a text in its row changes nothing before it.
    plain = _plain_logits(facts, pad_sequence(texts, batch_first=True), prompt.shape[1])
    ends = [len(text) - prompt.shape[1] for text in texts]
    errors = [
        largest_difference(own, row[end - len(own) : end]) for own, row, end in zip(scored, plain, ends, strict=True)
    ]
    return torch.stack([found.max() for found in torch.stack(errors).split(counts)])


def root_tolerance(facts: ModelFacts) -> float:
    """The tolerance for a token scored twice, alone and with its prompt: ten times the check's own, within limits."""
    known = [result.tolerance for result in _results.by_model.get(facts.model, {}).values()]
    # Quantised activations may exceed the limit that would otherwise hide a wrong mask.
    found = max([*known, least_tolerance(facts, facts.dtype)])
    return max(min(OWN_DIFFERENCE_FACTOR * found, LARGEST_TOLERANCE), found)


def largest_difference(logits: Float[Tensor, "L V"], expected: Float[Tensor, "L V"]) -> Float[Tensor, ""]:
    """The largest node's difference, NaN where there is any; the spread is that of the tokens that are not forbidden.

    A model forbids tokens by infinities or its dtype's least number.
    """
    is_allowed = expected > torch.finfo(expected.dtype).min / 2
    gaps = torch.where(logits == expected, 0.0, logits.float() - expected.float())
    spread = expected.float()[is_allowed].std().clamp(min=torch.finfo(torch.float32).tiny)
    return gaps.square().mean(-1).sqrt().max() / spread


def _plain_logits(facts: ModelFacts, ids: Int[Tensor, "B L"], num_prompt: int) -> Float[Tensor, "B M V"]:
    """Logits after the tokens that follow the prompt, by one uncached pass.

    Where a prompt attends itself in both directions this would take all for the prompt: there token by token.
    """
    model = facts.model
    if not (is_multimodal(model) and detect(facts).has_prefix):
        return model(input_ids=ids, use_cache=False).logits[:, num_prompt:]
    cache = {facts.cache_argument: cache_in(model(input_ids=ids[:, :num_prompt], use_cache=True))}
    steps = ids[:, num_prompt:].split(1, dim=1)
    return torch.cat([model(input_ids=token, **cache, use_cache=True).logits for token in steps], dim=1)
