"""Medusa heads as a drafter: the right head at the right depth, the best products, the target's own output."""

from itertools import product

import pytest
import torch
from helpers.doc_snippets import run_snippet
from helpers.medusa_files import authors_tensors, fitted_heads, random_heads, write
from helpers.tiny import padded, prompt, tiny_llama

import treespec
from treespec import TreeSpeculation
from treespec.errors import CheckpointError, ConfigError, VocabularyMismatchError
from treespec.heads import Medusa, MedusaHeads
from treespec.hf.introspect import CACHE_NAME
from treespec.policies import BestFirst, Chain, KAry, Paths
from treespec.tree import SELECTED

GREEDY = {"max_new_tokens": 40, "do_sample": False}
AUTHORS_TREE = [(0,), (0, 0), (1,), (0, 1), (0, 0, 0), (1, 0), (2,), (0, 2), (0, 0, 1), (0, 0, 0, 0)]


@pytest.fixture(scope="module")
def target():
    return tiny_llama()


@pytest.fixture(scope="module")
def ragged():
    return padded(prompt(3, 10), [0, 4, 9])


@pytest.fixture(scope="module")
def texts(target):
    return target.generate(prompt(2, 8), max_new_tokens=40, do_sample=False)


@pytest.fixture(scope="module")
def heads(target, texts):
    return fitted_heads(target, texts)


def acceptance(target, heads, tree, **options) -> float:
    speculation = TreeSpeculation(Medusa(heads), tree=tree, seed=0)
    out = target.generate(prompt(2, 8), custom_generate=speculation, **GREEDY | options)
    if not options:
        assert torch.equal(out, target.generate(prompt(2, 8), **GREEDY))
    return speculation.stats.mean_acceptance_length


def test_fitted_heads_are_accepted_and_shifted_ones_are_not(target, heads):
    assert acceptance(target, heads, Chain(4)) > 1.8
    shifted = MedusaHeads(heads.heads[1:])
    assert acceptance(target, shifted, Chain(3)) < 1.4


@pytest.mark.parametrize("tree", [AUTHORS_TREE, 12, KAry((2, 2, 1))], ids=["authors", "best-first", "k-ary"])
def test_trees_are_accepted_further_than_chains(target, heads, tree):
    assert acceptance(target, heads, tree) >= acceptance(target, heads, Chain(3))


@pytest.mark.parametrize("tree", [Chain(4), AUTHORS_TREE, 12, BestFirst(12, SELECTED)])
@pytest.mark.parametrize("is_penalised", [False, True])
def test_greedy_equals_plain_in_a_ragged_batch(target, heads, ragged, tree, is_penalised):
    options = GREEDY | ({"repetition_penalty": 1.7} if is_penalised else {})
    plain = target.generate(**ragged, **options)
    assert torch.equal(
        target.generate(**ragged, **options, custom_generate=TreeSpeculation(Medusa(heads), tree=tree)), plain
    )


def slow_trees(heads, features, num_nodes):
    """The `num_nodes - 1` best token paths by brute force over products of the heads' distributions."""
    distributions = [head.logits(features.unsqueeze(0)).softmax(-1)[0].tolist() for head in heads.heads]
    values = {}
    for depth in range(1, len(distributions) + 1):
        tops = [
            sorted(range(len(distribution)), key=lambda t, distribution=distribution: -distribution[t])[:num_nodes]
            for distribution in distributions[:depth]
        ]
        for path in product(*tops):
            values[path] = (
                torch.tensor([distributions[i][t] for i, t in enumerate(path)], dtype=torch.float64).prod().item()
            )
    return set(sorted(values, key=lambda path: -values[path])[: num_nodes - 1])


@pytest.mark.parametrize("tree", [BestFirst(9), BestFirst(9, depth=3, beam=8)], ids=["heap", "layers"])
def test_best_first_trees_are_the_best_products(target, tree):
    heads = random_heads(3)
    speculation = TreeSpeculation(Medusa(heads), tree=tree, record_steps=True)
    out = target.generate(prompt(1, 8), custom_generate=speculation, **GREEDY)
    with torch.no_grad():
        states = target(input_ids=out, output_hidden_states=True, use_cache=False).hidden_states[-1][0]
    root = 7
    for step in speculation.steps:
        (grown,) = step.trees
        if root + 3 < out.shape[1] - 1:  # Near the end trees are shallower.
            assert grown.num_nodes == 9
            paths = {tuple(grown.token(n) for n in path_to(grown, node)) for node in range(1, 9)}
            assert paths == slow_trees(heads, states[root - 1], 9)
        root += len(step.emitted[0])
    assert root == out.shape[1] - 1


def path_to(tree, node):
    path = []
    while node > 0:
        path.insert(0, node)
        node = tree.parent_list[node]
    return path


@pytest.mark.parametrize("penalty", [1.0, 1.5], ids=["path-free", "along-paths"])
def test_sampled_children_keep_the_heads_distributions(target, heads, penalty):
    """The stored distribution of every child is its depth's head under the caller's processors, and the output
    has a seed."""
    options = {"do_sample": True, "temperature": 1.3, "top_k": 9, "repetition_penalty": penalty}
    speculation = TreeSpeculation(Medusa(heads), tree=KAry((2, 2, 1)), seed=4, record_steps=True)
    ids = prompt(1, 8)
    out = target.generate(ids, max_new_tokens=16, custom_generate=speculation, **options)
    again = target.generate(ids, max_new_tokens=16, custom_generate=speculation, **options)
    assert torch.equal(out, again)
    with torch.no_grad():
        states = target(input_ids=out, output_hidden_states=True, use_cache=False).hidden_states[-1][0]
    root, num_checked = 7, 0
    for step in speculation.steps:
        (grown,) = step.trees
        for node in range(1, grown.num_nodes):
            if is_first(grown, node):
                path = path_to(grown, node)
                seen = {*out[0, : root + 1].tolist(), *(grown.token(n) for n in path[:-1])}
                logits = heads.heads[len(path) - 1].logits(states[root - 1].unsqueeze(0))[0]
                for token in seen:
                    logits[token] = logits[token] / penalty if logits[token] > 0 else logits[token] * penalty
                logits = logits / 1.3
                logits[logits < logits.topk(9).values[-1]] = -torch.inf
                torch.testing.assert_close(grown.draft_probs_of(node), logits.softmax(-1), atol=1e-4, rtol=0)
                num_checked += 1
        root += len(step.emitted[0])
    assert num_checked > 20


def is_first(tree, node):
    """Whether a child is the first of its parent's, whose distribution has nothing taken out."""
    return tree.parent_list.index(tree.parent_list[node]) == node


def test_full_context(texts):
    target = tiny_llama(max_position_embeddings=32)
    speculation = TreeSpeculation(Medusa(random_heads(3)), tree=8)
    ids = prompt(2, 20)
    options = {"max_length": 32, "do_sample": False}
    assert torch.equal(target.generate(ids, **options, custom_generate=speculation), target.generate(ids, **options))


def test_prompts_of_one_token_and_given_caches(target, heads):
    ids = prompt(2, 1)
    speculation = TreeSpeculation(Medusa(heads), tree=8)
    assert torch.equal(target.generate(ids, **GREEDY, custom_generate=speculation), target.generate(ids, **GREEDY))
    ids, cache = prompt(1, 8), treespec.new_cache(2)
    with torch.no_grad():
        target(input_ids=ids[:, :-1], **{CACHE_NAME: cache})
    out = target.generate(ids, **{CACHE_NAME: cache}, **GREEDY, custom_generate=speculation)
    assert torch.equal(out, target.generate(ids, **GREEDY))
    assert speculation.stats.num_accepted_tokens > 0


def test_a_prompts_own_feature_is_used(target, heads):
    speculation = TreeSpeculation(Medusa(heads), tree=8, record_steps=True)
    target.generate(prompt(2, 8), **GREEDY, custom_generate=speculation)
    assert speculation.steps[0].trees[0].num_nodes == 8


def test_heads_can_be_merged(target, heads):
    speculation = TreeSpeculation([Medusa(heads), treespec.SuffixLookup()], tree=10)
    plain = target.generate(prompt(2, 8), **GREEDY)
    assert torch.equal(target.generate(prompt(2, 8), **GREEDY, custom_generate=speculation), plain)
    assert speculation.stats.mean_acceptance_length > 1.5


def test_heads_of_another_model_are_refused(target):
    for heads, error in (
        (random_heads(vocab_size=60), VocabularyMismatchError),
        (random_heads(vocab_size=70), VocabularyMismatchError),
        (random_heads(hidden_size=16), CheckpointError),
    ):
        with pytest.raises(error, match="another model"):
            target.generate(prompt(1, 8), **GREEDY, custom_generate=TreeSpeculation(Medusa(heads)))


def test_static_caches_and_half_precision(heads):
    target = tiny_llama().to(torch.bfloat16)
    speculation = TreeSpeculation(Medusa(heads), tree=8)
    out = target.generate(prompt(1, 8), **GREEDY, cache_implementation="static", custom_generate=speculation)
    assert out.shape == (1, 48)
    assert speculation.stats.num_accepted_tokens > 0


def test_from_config(target, heads, tmp_path):
    folder = str(write(tmp_path, authors_tensors(heads)))
    speculation = treespec.from_config({"method": "medusa", "model": folder, "num_speculative_tokens": 4})
    plain = target.generate(prompt(2, 8), **GREEDY)
    assert torch.equal(target.generate(prompt(2, 8), **GREEDY, custom_generate=speculation), plain)
    assert speculation.stats.mean_acceptance_length > 1.8
    with pytest.raises(ConfigError, match="'medusa' needs 'model'"):
        treespec.from_config({"method": "medusa", "num_speculative_tokens": 4})


def test_more_draft_tokens_than_heads(target, heads):
    assert acceptance(target, heads, Chain(9)) > 1.8


def test_paths_deeper_than_the_heads(target, heads):
    deep = Paths([(0,) * depth for depth in range(1, 8)])
    assert acceptance(target, MedusaHeads(heads.heads[:2]), deep) > 1.5


def test_the_snippet_of_the_docs_runs(target, heads, tmp_path, monkeypatch):
    (tmp_path / "medusa-vicuna-7b-v1.3").mkdir()
    write(tmp_path / "medusa-vicuna-7b-v1.3", authors_tensors(heads))
    monkeypatch.chdir(tmp_path)
    names = run_snippet("Medusa heads", page="heads.md")
    target.generate(prompt(2, 8), **GREEDY, custom_generate=names["speculation"])
    assert names["speculation"].stats.mean_acceptance_length > 1.8
