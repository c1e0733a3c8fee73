"""Distributions of a real model and a draft of it: SmolLM2-135M, and the same model without three of its thirty layers.

No other small model shares SmolLM2's vocabulary, so its draft is made from it, without training: layers 14 to 16
(counted from 0) are left out, the residual stream passes them by. The layers were chosen among a few sets for a
resemblance like a trained draft model's: at temperature 1 `sum min(P, q)` between .55 and .7 and the same most likely
token at 50 to 70 % of the positions (the report says what it was on the recorded texts). Its speed is not that of a
draft model, and is not measured.
"""

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
from treespec.hf.generation.processors import TreeProcessors
from treespec.protocols import CausalScorer
from treespec.tree import PADDING_PARENT, ROOT_PARENT

LEFT_OUT = (14, 15, 16)
NODES_PER_PASS, TEXTS_PER_BATCH = 64, 4
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
    draft.model.embed_tokens, draft.model.norm = given.model.embed_tokens, given.model.norm
    draft.lm_head = given.lm_head
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


def write_texts(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    given: Sequence[Prompt],
    temperature: float,
    num_new: int,
    seed: int,
    cache: Path,
) -> list[Text]:
    """The prompts, each continued by the target, greedily at temperature zero, up to its end of text.

    Once written they are kept in the folder `cache`.
    """
    chosen = repr(([prompt.text for prompt in given], temperature, num_new, seed))
    file = cache / f"texts-{hashlib.sha256(chosen.encode()).hexdigest()[:16]}.pt"
    if not file.is_file():
        torch.manual_seed(seed)
        sampling = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
        options: dict[str, Any] = sampling if temperature else {"do_sample": False}
        called: Any = model
        texts: list[tuple[Tensor, int]] = []
        for first in range(0, len(given), TEXTS_PER_BATCH):
            inputs = encode(tokenizer, given[first : first + TEXTS_PER_BATCH])
            out = called.generate(**inputs, max_new_tokens=num_new, **options)
            for row, mask in zip(out, inputs["attention_mask"], strict=True):
                start = int(mask.sum())
                ids = row[len(mask) - start :]
                ends = (ids[start:] == tokenizer.eos_token_id).nonzero()
                texts.append((ids[: start + int(ends[0]) + 1] if len(ends) else ids, start))
        cache.mkdir(parents=True, exist_ok=True)
        torch.save(texts, file)
    return [Text(ids, start) for ids, start in torch.load(file, weights_only=True)]


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
