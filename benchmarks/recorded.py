"""Laws of a real model and a draft of it: SmolLM2-135M, and the same model without three of its thirty layers.

No other small model shares SmolLM2's vocabulary, so its draft is made from it, without training: layers 14 to 16
(counted from 0) are left out, the residual stream passes them by. The layers were chosen among a few sets for a
resemblance like a trained draft model's: at temperature 1 `sum min(P, q)` between .55 and .7 and the same most likely
token at 50 to 70 % of the places (the report says what it was on the recorded texts). Its speed is no draft model's,
and is not measured.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.generation.logits_process import TemperatureLogitsWarper

from benchmarks.acceptance import Context
from benchmarks.prompts import DEMO, encode
from treespec.hf import CausalLM
from treespec.hf.processors import TreeProcessors
from treespec.protocols import CausalScorer
from treespec.tree import ROOT_PARENT

LEFT_OUT = (14, 15, 16)
NODES_PER_PASS = 64


def without_layers(model: PreTrainedModel, left_out: Sequence[int] = LEFT_OUT) -> PreTrainedModel:
    """A model of the llama family without some of its layers; the weights are shared with the given one."""
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
    """The demo prompts, each continued by the target at a temperature; kept in `cache_file` once sampled."""
    if cache_file is not None and cache_file.is_file():
        return [Text(ids, start) for ids, start in torch.load(cache_file)]
    torch.manual_seed(seed)
    inputs = encode(tokenizer, DEMO)
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


class ModelLaws:
    """The laws of one scorer below a context; what it has scored stays pending, so nothing is scored twice."""

    def __init__(self, scorer: CausalScorer, ids: Tensor, temperature: float) -> None:
        """ids: int64 [L], the root last."""
        self._scorer = scorer
        warpers = [] if temperature == 1 else [TemperatureLogitsWarper(temperature)]
        self._processors = TreeProcessors(warpers, num_rows=1)
        scorer.prefill(ids[None, :-1], torch.ones(1, len(ids) - 1, dtype=torch.bool))
        self._root = int(ids[-1])
        self._numbers: dict[Context, int] = {}
        self._laws: dict[Context, Tensor] = {}

    def of(self, contexts: Sequence[Context]) -> list[Tensor]:
        missing = sorted({c[:end] for c in contexts for end in range(len(c) + 1)} - set(self._laws), key=len)
        for first in range(0, len(missing), NODES_PER_PASS):
            self._score(missing[first : first + NODES_PER_PASS])
        return [self._laws[context] for context in contexts]

    def _score(self, contexts: Sequence[Context]) -> None:
        for context in contexts:
            self._numbers[context] = len(self._numbers)
        tokens = torch.tensor([[context[-1] if context else self._root for context in contexts]])
        parents = torch.tensor([[self._numbers[c[:-1]] if c else ROOT_PARENT for c in contexts]])
        logits = self._scorer.extend(tokens, parents).logits[0]
        laws = self._processors(tokens.view(-1, 1), logits, 0).softmax(-1)
        self._laws.update(zip(contexts, laws, strict=True))


class RecordedLaws:
    """Target and draft below one context of a text."""

    def __init__(self, target: CausalScorer, draft: CausalScorer, ids: Tensor, temperature: float) -> None:
        self._target, self._draft = (ModelLaws(scorer, ids, temperature) for scorer in (target, draft))

    def target(self, contexts: Sequence[Context]) -> list[Tensor]:
        return self._target.of(contexts)

    def draft(self, contexts: Sequence[Context]) -> list[Tensor]:
        return self._draft.of(contexts)


class PairLaws:
    """One recorded pair of laws [V]: serves trees of depth one."""

    def __init__(self, target_law: Tensor, draft_law: Tensor) -> None:
        self._pair = target_law, draft_law

    def target(self, contexts: Sequence[Context]) -> list[Tensor]:
        return [self._pair[0] for _ in contexts]

    def draft(self, contexts: Sequence[Context]) -> list[Tensor]:
        return [self._pair[1] for _ in contexts]


@torch.no_grad()
def record_pairs(
    target: PreTrainedModel, draft: PreTrainedModel, texts: Sequence[Text], temperature: float, count: int
) -> list[PairLaws]:
    """Both models' laws at `count` positions, spread evenly over the texts' continuations."""
    pairs: list[PairLaws] = []
    for number, text in enumerate(texts):
        share = (number + 1) * count // len(texts) - number * count // len(texts)
        last = torch.tensor([len(ids) - 1 for ids in text.contexts(share)], dtype=torch.int64)
        laws = []
        for model in (target, draft):
            called: Any = model
            logits = called(text.ids[None, : int(last.max()) + 1]).logits[0, last]
            laws.append((logits.float() / temperature).softmax(-1))
        pairs += [PairLaws(*pair) for pair in zip(*laws, strict=True)]
    return pairs


def scorers(target: PreTrainedModel, draft: PreTrainedModel) -> tuple[CausalLM, CausalLM]:
    return CausalLM(target), CausalLM(draft)
