"""Every architecture of the zoo: trees score as their paths do, caches stay right, greedy decoding equals `generate`.

The oracle is plain transformers without a cache: one row per path, no mask, no positions. Paths of different lengths
share a batch by padding on the right, which a causal model never looks at.
"""

from __future__ import annotations

import random
import warnings

import pytest
import torch
from helpers.zoo import ARCHITECTURES, MIN_LOGIT_STD, VOCAB_SIZE, WINDOW, Architecture, build, prompts
from transformers import PreTrainedModel

import treespec
from treespec.errors import TreespecWarning
from treespec.hf import make_scorer
from treespec.hf.models import capability as capability_module
from treespec.lab.selftest.drafters import Planted
from treespec.protocols import Capability, CausalScorer
from treespec.tree import TokenTree

TOLERANCE = 1e-4
PROMPT_LENGTH = 36
PADDING = (0, 5, 12)
NUM_ROUNDS = 7
NUM_NEW = 16

OTHER_ATTENTIONS = [
    pytest.param(architecture, attention, id=f"{architecture}-{attention}")
    for architecture in ARCHITECTURES
    for attention in architecture.attentions[1:]
]
NOT_TREES = [architecture for architecture in ARCHITECTURES if architecture.capability != Capability.TREE]


@pytest.fixture(scope="module", params=ARCHITECTURES, ids=str)
def built(request) -> tuple[Architecture, PreTrainedModel]:
    """An architecture and its model, one for all tests of it, which run one after the other."""
    return request.param, build(request.param)


def padded_prompts():
    """Left-padded prompts of 24 and more tokens: ids int64 [B, P], mask bool [B, P]."""
    ids = prompts(len(PADDING), PROMPT_LENGTH, seed=1)
    mask = torch.arange(PROMPT_LENGTH) >= torch.tensor(PADDING).unsqueeze(1)
    return ids.masked_fill(~mask, 0), mask


def quiet_scorer(model) -> CausalScorer:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TreespecWarning)
        return make_scorer(model)


def random_tree(capability: Capability, choices: random.Random) -> TokenTree:
    """A tree, chain or single node of random tokens and random shape, as the capability allows."""
    size = 1 if capability == Capability.PLAIN else choices.randint(2, 9)
    tokens = [choices.randrange(3, VOCAB_SIZE) for _ in range(size)]
    parents = [-1] + [i - 1 if capability == Capability.CHAIN else choices.randrange(i) for i in range(1, size)]
    return TokenTree(torch.tensor(tokens), torch.tensor(parents))


def plain_logits(model, histories: list[list[int]], trees: list[TokenTree]) -> list[torch.Tensor]:
    """Per tree the logits [N, V] of its nodes, each by an uncached pass along its path."""
    paths = [(row, path) for row, tree in enumerate(trees) for path in tree.leaf_paths()]
    texts = [torch.tensor(histories[row] + [trees[row].token(node) for node in path]) for row, path in paths]
    with torch.no_grad():
        batch = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True, padding_value=3)
        logits = model(input_ids=batch, use_cache=False).logits
    expected = [torch.empty(tree.num_nodes, logits.shape[-1]) for tree in trees]
    for (row, path), found in zip(paths, logits, strict=True):
        start = len(histories[row])
        expected[row][list(path)] = found[start : start + len(path)]
    return expected


def test_tree_logits_equal_path_logits(built):
    check_tree_logits(*built)


@pytest.mark.slow
@pytest.mark.parametrize(("architecture", "attention"), OTHER_ATTENTIONS)
def test_tree_logits_equal_path_logits_in_other_attentions(architecture: Architecture, attention: str):
    check_tree_logits(architecture, build(architecture, attention))


def check_tree_logits(architecture: Architecture, model: PreTrainedModel) -> None:
    """Rounds of tree, ragged commit, tree, in a left-padded batch."""
    scorer = quiet_scorer(model)
    assert scorer.capability == architecture.capability
    ids, mask = padded_prompts()
    histories = [row[valid].tolist() for row, valid in zip(ids, mask, strict=True)]
    scorer.prefill(ids, mask)
    choices = random.Random(str(architecture))
    for _ in range(NUM_ROUNDS):
        trees = [random_tree(scorer.capability, choices) for _ in histories]
        batch = treespec.TreeBatch.from_trees(trees)
        logits = scorer.extend(batch.tokens, batch.parents).logits
        paths = []
        for row, expected in enumerate(plain_logits(model, histories, trees)):
            assert (logits[row, : len(expected)] - expected).abs().max() <= TOLERANCE
            path = choices.choice(trees[row].leaf_paths())
            paths.append(path[: choices.randint(1, len(path))])
            histories[row] += [trees[row].token(node) for node in paths[row]]
        scorer.commit(paths)


def test_wrong_structure_would_be_noticed(built):
    """The models look back, and have logits wide enough: scoring the tree as a chain gives something else."""
    _, model = built
    ids = prompts(1, PROMPT_LENGTH, seed=1)
    with torch.no_grad():
        assert model(input_ids=ids, use_cache=False).logits.std() >= 1
    tree = TokenTree.from_paths([(0,), (1,), (0, 0), (1, 0)], [5, 9, 23, 40, 40])
    chain = TokenTree.chain(tree.tokens)
    as_tree = plain_logits(model, [ids[0].tolist()], [tree])[0]
    as_chain = plain_logits(model, [ids[0].tolist()], [chain])[0]
    assert (as_tree - as_chain).abs().amax(1)[2:].min() > 100 * TOLERANCE


def test_greedy_decoding_equals_generate(built):
    """The true continuation is planted at random ranks, so that branches are accepted and not only first children."""
    architecture, model = built
    ids, mask = padded_prompts()
    options = {"attention_mask": mask.long(), "max_new_tokens": NUM_NEW, "do_sample": False, "pad_token_id": 0}
    options["eos_token_id"] = VOCAB_SIZE + 1
    plain = model.generate(ids, **options)
    max_width = 4 if architecture.capability == Capability.TREE else 1
    speculation = treespec.TreeSpeculation(Planted(plain[:, PROMPT_LENGTH:].tolist(), VOCAB_SIZE, max_width), tree=16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TreespecWarning)
        found = model.generate(ids, **options, custom_generate=speculation)
    assert torch.equal(found, plain)
    accepted = speculation.stats.num_accepted_at_rank
    if architecture.capability == Capability.TREE:
        assert sum(count for rank, count in accepted.items() if rank >= 1) > 0
    assert (sum(accepted.values()) > 0) == (architecture.capability != Capability.PLAIN)


@pytest.mark.parametrize("architecture", NOT_TREES, ids=str)
def test_fallback_is_said_once(architecture: Architecture, monkeypatch):
    monkeypatch.setattr(capability_module, "_said", set())
    way = "by chains" if architecture.capability == Capability.CHAIN else "one token at a time"
    with pytest.warns(TreespecWarning, match=f"decodes {way} because it"):
        make_scorer(build(architecture))
    make_scorer(build(architecture))  # warnings are errors here


def test_zoo_is_large():
    assert len({architecture.model_type for architecture in ARCHITECTURES}) >= 55
    assert len({str(architecture) for architecture in ARCHITECTURES}) == len(ARCHITECTURES)
    assert PROMPT_LENGTH - max(PADDING) >= 24 > WINDOW
    assert MIN_LOGIT_STD > 1
