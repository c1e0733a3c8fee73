"""Greedy texts: identical to plain decoding alone, in batches that rows leave, under processors, and in the cache."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, LogitsProcessorList
from transformers.generation.logits_process import LogitsProcessor

from treespec.drafters.model.token_map import left_padded
from treespec.hf.attention.rope_lengths import RopeByLength
from treespec.hf.generation.speculation import TreeSpeculation
from treespec.hf.introspect import CACHE_NAME, cache_in
from treespec.hf.models.capability import keeps_states
from treespec.lab.selftest.agreement import Plain, compare, plain_greedy
from treespec.lab.selftest.drafters import Planted, seeded_rand
from treespec.lab.selftest.report import FAILED, OK, SKIPPED, WARNING, Outcome
from treespec.lab.selftest.subject import Subject

LONGEST_PROMPT = 8192
"""Tokens of the self-test's own texts, at most."""

CACHE_TOLERANCE = 64
"""Units of the dtype's precision by which a cached entry may differ, relative to its length, per layer's depth."""


def check_greedy(subject: Subject) -> Outcome:
    """Trees that hold the true continuation at random ranks, so that every kind of path is accepted."""
    outputs = [
        _decode(subject, prompt, planted(subject, [plain], seed))
        for seed, (prompt, plain) in enumerate(zip(subject.prompts, subject.plains, strict=True))
    ]
    return _compared(subject, outputs, subject.plains)


def check_drafter(subject: Subject) -> Outcome:
    """The user's own drafter and tree."""
    assert subject.speculation is not None
    outputs = [_decode(subject, prompt, subject.speculation) for prompt in subject.prompts]
    outcome, text = _compared(subject, outputs, subject.plains)
    return outcome, f"{text}; {subject.speculation.total_stats.mean_acceptance_length:.2f} tokens per tree"


def check_near_ties(subject: Subject) -> Outcome:
    """How often plain decoding itself hangs on rounding."""
    positions = [(text, at, gap) for text, plain in enumerate(subject.plains) for at, gap in enumerate(plain.gaps)]
    near = [(text, at) for text, at, gap in positions if gap <= subject.tie]
    text = f"{len(near)} of {len(positions)} greedy tokens have a second best logit within {subject.tie:.1e}"
    if not near:
        return OK, text
    where = ", ".join(f"text {text + 1} token {at + 1}" for text, at in near[:5])
    return WARNING, f"{text} ({where}): there rounding decides, with or without speculation"


def check_batch(subject: Subject) -> Outcome:
    """A left-padded batch whose rows stop at different lengths and leave it."""
    ends, cuts = _ends(subject.plains)
    if len(set(cuts)) < 2:
        return SKIPPED, "the texts are so alike that no token ends them at different lengths"
    cut = [Plain(plain.tokens[:n], plain.gaps[:n]) for plain, n in zip(subject.plains, cuts, strict=True)]
    outcome, text = _compared(subject, _decode_batch(subject, cuts, ends), cut)
    if outcome == OK:
        return outcome, text
    begins = [Plain(plain.tokens[: min(cuts)], plain.gaps[: min(cuts)]) for plain in cut]
    together, _ = _compared(subject, _decode_batch(subject, [min(cuts)] * len(cuts), None), begins)
    cause = "after a row has left, another uses its state" if together == OK else "a padded batch is wrong"
    return FAILED, f"{cause}: {text}"


def check_rope(subject: Subject) -> Outcome:
    """A text across the length from which on the rope frequencies depend on the length."""
    threshold = RopeByLength(subject.model).threshold
    if threshold is None:
        return SKIPPED, "no rope frequencies that depend on the length of the text"
    length = max(threshold - subject.num_new // 2, 2)
    if length > LONGEST_PROMPT:
        return WARNING, f"texts of {threshold} tokens take too long: beyond that length give check a prompt of your own"
    prompt = torch.cat(subject.prompts).repeat(length)[:length]
    plain = plain_greedy(subject.model, subject.inputs(prompt), subject.num_new)
    output = _decode(subject, prompt, planted(subject, [plain], seed=13))
    if output == plain.tokens:
        return OK, f"identical to plain: {len(output)} tokens across {threshold} tokens of text"
    at = next((i for i, pair in enumerate(zip(output, plain.tokens, strict=False)) if pair[0] != pair[1]), len(output))
    if at < len(plain.gaps) and plain.gaps[at] <= subject.tie:
        return OK, f"identical to plain but after a near-tie, token {at + 1} of {len(output)}"
    text = f"a text of {length} tokens that continues across {threshold}, where the rope frequencies change,"
    return FAILED, f"{text} differs from plain greedy decoding from new token {at + 1} on"


def check_cache(subject: Subject) -> Outcome:
    """The cache after many rounds against that of one plain pass over the same text, entry by entry."""
    if keeps_states(subject.model):
        return SKIPPED, "the model keeps states, not entries per token"
    prompt = subject.prompts[0]
    if RopeByLength(subject.model).is_exceeded_by(len(prompt) + subject.num_new):
        return SKIPPED, "the frequencies of the text's rope depend on how it was read"
    plain = subject.plains[0]
    cache = DynamicCache(config=subject.facts.config)
    speculation = planted(subject, [plain], seed=5)
    output = _decode(subject, prompt, speculation, **{CACHE_NAME: cache})
    ids = torch.cat([prompt, torch.tensor(output[:-1], dtype=torch.int64, device=prompt.device)])
    expected = cache_in(subject.model(ids[None], use_cache=True))
    fault = _cache_fault(cache, expected, subject.facts.dtype)
    rounds = f"{speculation.stats.num_drafts} rounds, {len(ids)} tokens"
    if fault is None:
        return OK, f"holds the keys and values of a plain pass ({rounds})"
    return FAILED, f"{fault} ({rounds})"


def check_processors(subject: Subject) -> Outcome:
    """A processor whose scores depend on every token before the position; what it was asked with is kept."""
    prompt = subject.prompts[-1]
    processor = Fingerprint()
    processors = LogitsProcessorList([processor])
    plain = plain_greedy(subject.model, subject.inputs(prompt), subject.num_new // 2, logits_processor=processors)
    processor.asked.clear()
    options = {"max_new_tokens": len(plain.tokens), "logits_processor": processors}
    output = _decode(subject, prompt, planted(subject, [plain], seed=7), **options)
    start = prompt.tolist()
    unasked = [n for n in range(len(output)) if tuple(start + output[:n]) not in processor.asked]
    if unasked:
        return FAILED, f"a processor was asked with wrong ids: never with the text before new token {unasked[0] + 1}"
    if output != plain.tokens:
        return FAILED, "the output under a processor that reads its ids is not plain generate's"
    return OK, f"a processor that reads all ids gives plain generate's {len(output)} tokens"


def check_seeds(subject: Subject) -> Outcome:
    """Two calls with one seed give one output, a call with another seed a different one."""
    drawn = []
    options = {"max_new_tokens": 10, "do_sample": True, "temperature": 2.0, "top_k": 50}
    for seed in (subject.seed, subject.seed, subject.seed + 1):
        speculation = planted(subject, [subject.plains[0]], seed=3, call_seed=seed)
        drawn.append(_decode(subject, subject.prompts[0], speculation, **options))
    if drawn[0] != drawn[1]:
        return FAILED, "two calls with the same seed and the same drafts gave different texts"
    if drawn[0] == drawn[2]:
        return WARNING, "another seed gave the same text: is the distribution one-hot?"
    return OK, "the same seed gives the same text, another seed another one"


class Fingerprint(LogitsProcessor):
    """Adds noise that is a function of all ids; remembers the ids that it was asked with."""

    def __init__(self) -> None:
        self.asked: set[tuple[int, ...]] = set()

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        rows = [tuple(row) for row in input_ids.tolist()]
        self.asked.update(rows)
        noise = [seeded_rand(row, scores.shape[-1]) for row in rows]
        return scores + 8 * torch.stack(noise).to(scores)


def planted(subject: Subject, plains: Sequence[Plain], seed: int, call_seed: int = 0) -> TreeSpeculation:
    """Speculation by trees that hold the true continuations at random ranks."""
    drafter = Planted([plain.tokens for plain in plains], subject.facts.num_logits, seed=seed)
    return TreeSpeculation(drafter, tree=16, seed=call_seed)


def _decode(subject: Subject, prompt: Tensor, speculation: TreeSpeculation, **options: Any) -> list[int]:
    """The new tokens of one row."""
    settings = {"max_new_tokens": subject.num_new, "do_sample": False, **options}
    output = subject.model.generate(**subject.inputs(prompt), **settings, custom_generate=speculation)
    return output[0, len(prompt) :].tolist()


def _decode_batch(subject: Subject, cuts: Sequence[int], ends: list[int] | None) -> list[list[int]]:
    """The new tokens of all prompts in one batch, each up to its cut."""
    ids, mask = left_padded([prompt.tolist() for prompt in subject.prompts], subject.facts.device)
    options = {} if ends is None else {"eos_token_id": ends, "pad_token_id": ends[0]}
    options |= {"max_new_tokens": subject.num_new, "do_sample": False}
    speculation, width = planted(subject, subject.plains, seed=11), ids.shape[1]
    output = subject.model.generate(ids, attention_mask=mask, **options, custom_generate=speculation)
    return [row[width : width + n].tolist() for row, n in zip(output, cuts, strict=True)]


def _ends(plains: Sequence[Plain]) -> tuple[list[int], list[int]]:
    """End tokens by which the texts end early at different lengths, and those lengths."""
    best: tuple[list[int], list[int]] = ([], [])
    for token in dict.fromkeys(token for plain in plains for token in plain.tokens[3:]):
        cuts = [plain.tokens.index(token) + 1 if token in plain.tokens else len(plain.tokens) for plain in plains]
        if min(cuts) > 2 and (len(set(cuts)), -min(cuts)) > (len(set(best[1])), -min(best[1], default=0)):
            best = [token], cuts
    return best


def _compared(subject: Subject, outputs: Sequence[list[int]], plains: Sequence[Plain]) -> Outcome:
    pairs = zip(subject.prompts, plains, outputs, strict=True)
    found = [compare(subject.model, prompt, plain, output, subject.tie) for prompt, plain, output in pairs]
    wrong = [f"text {i + 1} from new token {(a.position or 0) + 1} on" for i, a in enumerate(found) if not a.is_right]
    if wrong:
        return FAILED, f"differ from plain greedy decoding: {', '.join(wrong)}"
    count = sum(len(output) for output in outputs)
    ties = [f"text {i + 1} token {a.position + 1}" for i, a in enumerate(found) if a.position is not None]
    but = f" but after near-ties ({', '.join(ties)})" if ties else ""
    return OK, f"identical to plain{but}: {count} tokens in {len(outputs)} texts"


def _cache_fault(cache: Any, expected: Any, dtype: torch.dtype) -> str | None:
    """The fault of a cache of one row, None if nothing is wrong. Layers that keep a window are compared by its end."""
    tolerance = CACHE_TOLERANCE * len(expected.layers) ** 0.5 * torch.finfo(dtype).eps
    for number, (layer, plain) in enumerate(zip(cache.layers, expected.layers, strict=True)):
        count = min(layer.keys.shape[-2], plain.keys.shape[-2])
        mine, theirs = (
            torch.cat([x.keys[0, :, -count:], x.values[0, :, -count:]], -1).transpose(0, 1).flatten(1).float()
            for x in (layer, plain)
        )
        error = (mine - theirs).norm(dim=-1) / theirs.norm(dim=-1).clamp(min=1e-6)
        wrong = (~(error <= tolerance)).nonzero().flatten().tolist()
        if wrong:
            nearest = torch.cdist(mine, theirs).argmin(-1)
            is_permuted = (mine - theirs[nearest]).norm(dim=-1) <= tolerance * theirs[nearest].norm(dim=-1)
            first = wrong[0]
            where = f"layer {number}, {len(wrong)} of {count} entries"
            if bool(is_permuted.all()):
                return f"commit in the wrong order: entry {first} holds that of token {int(nearest[first])} ({where})"
            return f"entries are not those of the text from number {first} on ({where}, error {float(error.max()):.1e})"
    return None
