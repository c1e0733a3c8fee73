"""Cases of the joint-distribution benchmark: tiny models, their exact distribution, and every rule on the trees
that it supports."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM, LogitsProcessorList
from transformers.generation import logits_process as library

from treespec import BestFirst, Chain, KAry, SuffixLookup, TokenRecycling, TreeSpeculation
from treespec.hf import make_scorer
from treespec.protocols import NodeProbs, RandomSource, TreePolicy, VerifiableTree, VerificationRule
from treespec.testing import FirstToken, enumerate_continuations, uncached
from treespec.tree import TreeBatch, Verdict
from treespec.verification import RULES
from treespec.verification.dense.forms import has_dense_form

VOCAB_SIZE, NUM_TOKENS = 8, 3
PROMPT = [5, 2, 7, 5]
"""Its last token stood before, so that suffix lookup has something to propose."""
PLAIN: dict[str, Any] = {"top_k": 0}
WARPED: dict[str, Any] = {"top_k": 0, "temperature": 0.8, "top_p": 0.9, "repetition_penalty": 1.4}
MIN_P: dict[str, Any] = {"top_k": 0, "min_p": 0.25}
RAGGED = (PROMPT, [3, 6])
"""Prompts of two lengths, the shorter one padded on the left."""


class Models(NamedTuple):
    target: LlamaForCausalLM
    draft: LlamaForCausalLM


@dataclass(frozen=True)
class Case:
    """One rule on one kind of trees under one set of processors.

    Args:
        rule: by name or itself.
        policy: shapes the trees.
        trees: what they are called in the tables.
        options: of `generate`.
        drafter: from the models to what drafts; None: transformers' own sampling, for control.
        bug: the name of the mistake that was planted, None for the library as it is.
        planted: plants it during a `with` block, where it is not part of the rule, policy or drafter.
        prompts: the rows of a batch have them in turn.
    """

    rule: str | VerificationRule
    policy: TreePolicy
    trees: str
    options: dict[str, Any]
    drafter: Callable[[Models], Any] | None = lambda models: models.draft
    bug: str | None = None
    planted: Callable[[], AbstractContextManager[Any]] = nullcontext
    prompts: Sequence[list[int]] = (PROMPT,)

    @property
    def rule_name(self) -> str:
        return self.rule if isinstance(self.rule, str) else self.rule.name

    @property
    def processors(self) -> str:
        if "min_p" in self.options:
            return "min-p"
        return "warped" if self.options is WARPED else "plain"

    @property
    def name(self) -> str:
        parts = [self.rule_name, self.trees, self.processors] + ["ragged"] * (len(self.prompts) > 1)
        return " / ".join(parts if self.bug is None else [self.bug, *parts])


@dataclass(frozen=True)
class InNumpy:
    """A rule that gets numpy arrays in place of tensors, which cost ten times as much at eight tokens."""

    rule: VerificationRule

    @property
    def name(self) -> str:
        return self.rule.name

    @property
    def is_lossless(self) -> bool:
        return self.rule.is_lossless

    def reason_against(self, trees: TreeBatch) -> str | None:
        return self.rule.reason_against(trees)

    def verify(self, tree: VerifiableTree, target_probs: NodeProbs, rng: RandomSource) -> Verdict:
        return self.rule.verify(_NumpyTree(tree), lambda node: target_probs(node).cpu().numpy(), rng)


class _NumpyTree:
    def __init__(self, tree: VerifiableTree) -> None:
        self.num_nodes, self.children, self.token = tree.num_nodes, tree.children, tree.token
        self._draft_probs_of = tree.draft_probs_of

    def draft_probs_of(self, node: int) -> np.ndarray | None:
        probs = self._draft_probs_of(node)
        return None if probs is None else probs.cpu().numpy()


def tiny_models(device: torch.device | str = "cpu") -> Models:
    """A target and a draft that agrees with it in part, both checked to score trees rightly."""
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        initializer_range=0.4,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    state = torch.get_rng_state()
    torch.manual_seed(0)
    target, draft = LlamaForCausalLM(config).eval(), LlamaForCausalLM(config).eval()
    torch.set_rng_state(state)
    with torch.no_grad():
        for mine, theirs in zip(draft.parameters(), target.parameters(), strict=True):
            mine.mul_(0.4).add_(0.7 * theirs)
    models: list[Any] = [target, draft]
    for model in models:
        make_scorer(model.to(device))  # The self-check of a model's first use would see through the bugs planted later.
    return Models(target, draft)


def exact_distribution(model: LlamaForCausalLM, options: dict[str, Any], prompt: list[int] = PROMPT) -> np.ndarray:
    """The joint distribution of the next three tokens, float64 [512], from uncached passes over every prefix."""
    processors = LogitsProcessorList()
    if "repetition_penalty" in options:
        processors.append(library.RepetitionPenaltyLogitsProcessor(options["repetition_penalty"]))
        processors.append(library.TemperatureLogitsWarper(options["temperature"]))
        processors.append(library.TopPLogitsWarper(options["top_p"]))
    if "min_p" in options:
        processors.append(library.MinPLogitsWarper(options["min_p"]))
    joint = enumerate_continuations(
        uncached(model, torch.tensor(prompt, device=model.device), processors), NUM_TOKENS
    ).joint
    table = np.zeros((VOCAB_SIZE,) * NUM_TOKENS)
    for tokens, prob in joint.items():
        table[tokens] = prob
    return table.ravel()


def exact_cells(case: Case, models: Models) -> np.ndarray:
    """The exact probabilities of all cells of `count_batch`, float64 [512 times the prompts]."""
    exact = [exact_distribution(models.target, case.options, prompt) for prompt in case.prompts]
    return np.concatenate(exact) / len(exact)


def start(case: Case, models: Models) -> TreeSpeculation | None:
    """The case's `custom_generate` object; one serves all batches, so that tables learn. None: plain sampling."""
    if case.drafter is None:
        return None
    return TreeSpeculation(case.drafter(models), tree=case.policy, verification=case.rule)


def count_batch(
    case: Case, models: Models, speculation: TreeSpeculation | None, num_rows: int, seed: int
) -> np.ndarray:
    """How often each of the 512 continuations of every prompt came in one batch, int64 [512 times the prompts]."""
    length, count = max(map(len, case.prompts)), len(case.prompts)
    padded = torch.tensor([[0] * (length - len(prompt)) + prompt[:-1] for prompt in case.prompts])
    mask = torch.tensor([[0] * (length - len(prompt)) + [1] * (len(prompt) - 1) for prompt in case.prompts])
    target: Any = models.target
    torch.manual_seed(seed)
    if speculation is not None:
        speculation.options = replace(speculation.options, seed=seed)
    with case.planted():
        out = target.generate(
            padded.repeat(num_rows // count, 1).to(target.device),
            attention_mask=mask.repeat(num_rows // count, 1).to(target.device),
            max_new_tokens=1 + NUM_TOKENS,
            do_sample=True,
            logits_processor=LogitsProcessorList([FirstToken(case.prompts)]),
            custom_generate=speculation,
            **case.options,
        )
    new = torch.as_tensor(out)[:, length:].cpu().numpy()
    cells = new @ (VOCAB_SIZE ** np.arange(NUM_TOKENS - 1, -1, -1))
    cells += np.arange(len(cells)) % count * VOCAB_SIZE**NUM_TOKENS
    return np.bincount(cells, minlength=count * VOCAB_SIZE**NUM_TOKENS)


def kary(children: str) -> TreePolicy:
    return KAry((2, 2), children=children)


def tables(models: Models) -> list[Any]:
    """Two drafters without a model, which `TreeSpeculation` merges."""
    return [TokenRecycling(), SuffixLookup()]


def model_and_tables(models: Models) -> list[Any]:
    """A merge whose draft model draws its children, while the tables' are selected."""
    return [models.draft, *tables(models)]


def right_cases() -> list[Case]:
    """Every lossless rule and every draft distribution, with and without processors."""
    pairs = [("token", "chain"), ("block", "chain"), *(("target_walk", k) for k in ("selected", "best-first selected"))]
    for kind in ("without_replacement", "mixed", "iid", "best-first without_replacement"):
        pairs += [("recursive", kind), ("traversal", kind)]
    pairs += [("k_seq", "iid"), ("optimal_transport", "iid"), ("transport_traversal", "without_replacement")]
    merged = [Case("target_walk", BestFirst(8), "merged tables", options, tables) for options in (PLAIN, WARPED)]
    return merged + _cases(pairs)


def more_cases() -> list[Case]:
    """The same rules on more trees that they support."""
    pairs = [(rule, kind) for rule in ("recursive", "traversal") for kind in ("selected", "best-first iid")]
    merged = [
        Case(rule, BestFirst(8), "model merged with tables", options, model_and_tables)
        for rule in ("recursive", "traversal")
        for options in (PLAIN, WARPED)
    ]
    return merged + _cases([*pairs, ("optimal_transport", "without_replacement"), ("transport_traversal", "iid")])


def _cases(pairs: list[tuple[str, str]]) -> list[Case]:
    trees: dict[str, TreePolicy] = {"chain": Chain(2)}
    for children in ("iid", "without_replacement", "selected", "mixed"):
        trees[children] = kary(children)
    for children in ("iid", "without_replacement", "selected"):
        trees[f"best-first {children}"] = BestFirst(6, children=children)
    return [Case(fast_form(rule), trees[kind], kind, options) for rule, kind in pairs for options in (PLAIN, WARPED)]


def fast_form(name: str) -> str | VerificationRule:
    """A rule by name, or walking on numpy arrays where the engine would walk it on tensors."""
    rule = RULES[name]
    return name if has_dense_form(rule) else InNumpy(rule)
