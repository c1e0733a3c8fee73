"""Distributions of a real model and a draft of it: SmolLM2-135M, and the same model without three of its thirty layers.

No other small model shares SmolLM2's vocabulary, so its draft is made from it, without training: layers 14 to 16
(counted from 0) are left out, the residual stream passes them by. The layers were chosen among a few sets for a
resemblance like a trained draft model's: at temperature 1 `sum min(P, q)` between .55 and .7 and the same most likely
token at 50 to 70 % of the positions (the report says what it was on the recorded texts). Its speed is not that of a
draft model, and is not measured.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.generation.logits_process import TemperatureLogitsWarper

from benchmarks.common.acceptance import Context
from benchmarks.common.prompts import DEMO, Prompt, encode, gsm8k, human_eval
from treespec.hf import TreeScorer
from treespec.hf.generation.processors import TreeProcessors
from treespec.protocols import CausalScorer
from treespec.tree import PADDING_PARENT, ROOT_PARENT

LEFT_OUT = (14, 15, 16)
NODES_PER_PASS = 64
MANY_PENDING = 128
"""Beyond so many pending nodes per text a scorer starts again: a mask grows with their square."""


def without_layers(model: PreTrainedModel, left_out: Sequence[int] = LEFT_OUT) -> PreTrainedModel:
    """A Llama model without some of its layers; the weights are shared with the given one."""
    config = copy.deepcopy(model.config)
    config.num_hidden_layers -= len(left_out)
    given: Any = model
    draft: Any = type(given)(config).to(dtype=model.dtype, device=model.device).eval()
    kept = [layer for number, layer in enumerate(given.model.layers) if number not in left_out]
    for own, layer in zip(draft.model.layers, kept, strict=True):
        own.load_state_dict(layer.state_dict(), assign=True)
    draft.model.embed_tokens, draft.model.norm, draft.lm_head = (
        given.model.embed_tokens,
        given.model.norm,
        given.lm_head,
    )
    return draft


def prompts() -> list[Prompt]:
    """The demo's, and some of HumanEval and of GSM8K: 23 in all."""
    return [*DEMO, *human_eval()[7::23], *gsm8k()[7::14]]


class Text:
    """A prompt and its continuation, int64 [L] without padding; the continuation starts at `start`."""

    def __init__(self, ids: Tensor, start: int) -> None:
        self.ids, self.start = ids, start

    def contexts(self, count: int) -> list[Tensor]:
        """`count` prefixes at even distances, from the whole prompt on."""
        room = len(self.ids) - self.start
        return [self.ids[: self.start + i * room // count] for i in range(count)]


def sample_texts(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    temperature: float,
    num_new: int,
    seed: int,
    cache_file: Path | None = None,
) -> list[Text]:
    """The prompts, each continued by the target at a temperature.

    Once sampled they are kept in `cache_file`, whose name gets a digest of the prompts: others make another file.
    """
    if cache_file is not None:
        digest = hashlib.sha256(repr([prompt.text for prompt in prompts()]).encode()).hexdigest()[:16]
        cache_file = cache_file.with_name(f"{cache_file.stem}-{digest}{cache_file.suffix}")
    if cache_file is not None and cache_file.is_file():
        return [Text(ids, start) for ids, start in torch.load(cache_file)]
    torch.manual_seed(seed)
    inputs = encode(tokenizer, prompts())
    width = inputs["input_ids"].shape[1]
    options: dict[str, Any] = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
    model_: Any = model
    out = model_.generate(**inputs, max_new_tokens=num_new, **options)
    texts = []
    for row, mask in zip(out, inputs["attention_mask"], strict=True):
        kept = row[width - int(mask.sum()) :]
        start = int(mask.sum())
        ends = (kept[start:] == tokenizer.eos_token_id).nonzero()
        texts.append(Text(kept[: start + int(ends[0])] if len(ends) else kept, start))
    if cache_file is not None:
        cache_file.parent.mkdir(parents=True, exist_ok=True)
        torch.save([(text.ids, text.start) for text in texts], cache_file)
    return texts


class ModelDistributions:
    """The distributions of one scorer below some texts; every distribution is kept, and nodes stay pending for
    those below them."""

    def __init__(self, scorer: CausalScorer, texts: Sequence[Tensor], temperature: float) -> None:
        """texts: int64 [L] each, the roots last."""
        self._scorer = scorer
        warpers = [] if temperature == 1 else [TemperatureLogitsWarper(temperature)]
        self._processors = TreeProcessors(warpers, num_rows=len(texts))
        padded = pad_sequence([ids[:-1] for ids in texts], batch_first=True, padding_side="left")
        lengths = torch.tensor([len(ids) - 1 for ids in texts])
        mask = torch.arange(padded.shape[1]).flip(0) < lengths.unsqueeze(1)
        scorer.prefill(padded, mask)
        self._roots = [int(ids[-1]) for ids in texts]
        self._numbers: list[dict[Context, int]] = [{} for _ in texts]
        self._num_pending = 0
        self._probs: dict[Context, Tensor] = {}

    def of(self, contexts: Sequence[Context]) -> list[Tensor]:
        missing = [context for context in contexts if context not in self._probs]
        if missing and self._num_pending > MANY_PENDING:
            self._scorer.commit([()] * len(self._roots))
            self._numbers, self._num_pending = [{} for _ in self._roots], 0
        by_text: list[list[Context]] = [[] for _ in self._roots]
        for context in sorted({c[:end] for c in missing for end in range(1, len(c) + 1)}, key=lambda c: (len(c), c)):
            if context not in self._numbers[context[0]]:
                by_text[context[0]].append(context)
        for first in range(0, max(map(len, by_text)), NODES_PER_PASS):
            self._score([contexts[first : first + NODES_PER_PASS] for contexts in by_text])
        return [self._probs[context] for context in contexts]

    def _score(self, by_text: Sequence[Sequence[Context]]) -> None:
        """One pass over new contexts of every text, parents first."""
        shape = len(by_text), max(map(len, by_text))
        tokens, parents = torch.zeros(shape, dtype=torch.int64), torch.full(shape, PADDING_PARENT)
        for text, contexts in enumerate(by_text):
            numbers = self._numbers[text]
            for column, context in enumerate(contexts):
                # Padding is a pending node too: rows count in step.
                numbers[context] = self._num_pending + column
                tokens[text, column] = context[-1] if len(context) > 1 else self._roots[text]
                parents[text, column] = numbers[context[:-1]] if len(context) > 1 else ROOT_PARENT
        self._num_pending += shape[1]
        logits = self._scorer.extend(tokens, parents).logits
        for row, contexts in enumerate(by_text):
            if contexts:
                kept = logits[row, : len(contexts)]
                probs = self._processors(tokens[row, : len(contexts)].view(-1, 1), kept, row).softmax(-1)
                self._probs.update(zip(contexts, probs, strict=True))


class RecordedDistributions:
    """Target and draft below some texts."""

    def __init__(self, target: CausalScorer, draft: CausalScorer, texts: Sequence[Tensor], temperature: float) -> None:
        self._target, self._draft = (ModelDistributions(scorer, texts, temperature) for scorer in (target, draft))

    def target(self, contexts: Sequence[Context]) -> list[Tensor]:
        return self._target.of(contexts)

    def draft(self, contexts: Sequence[Context]) -> list[Tensor]:
        return self._draft.of(contexts)


class PairDistributions:
    """One recorded pair of distributions [V]: serves trees of depth one."""

    def __init__(self, target_probs: Tensor, draft_probs: Tensor) -> None:
        self._pair = target_probs, draft_probs

    def target(self, contexts: Sequence[Context]) -> list[Tensor]:
        return [self._pair[0] for _ in contexts]

    def draft(self, contexts: Sequence[Context]) -> list[Tensor]:
        return [self._pair[1] for _ in contexts]


@torch.no_grad()
def record_pairs(
    target: PreTrainedModel, draft: PreTrainedModel, texts: Sequence[Text], temperature: float, count: int
) -> list[PairDistributions]:
    """Both models' distributions at `count` positions, spread evenly over the texts' continuations."""
    pairs: list[PairDistributions] = []
    for number, text in enumerate(texts):
        share = (number + 1) * count // len(texts) - number * count // len(texts)
        last = torch.tensor([len(ids) - 1 for ids in text.contexts(share)], dtype=torch.int64)
        probs = []
        for model in (target, draft):
            called: Any = model
            logits = called(text.ids[None, : int(last.max()) + 1]).logits[0, last]
            probs.append((logits.float() / temperature).softmax(-1))
        pairs += [PairDistributions(*pair) for pair in zip(*probs, strict=True)]
    return pairs


def scorers(target: PreTrainedModel, draft: PreTrainedModel) -> tuple[TreeScorer, TreeScorer]:
    return TreeScorer(target), TreeScorer(draft)
