"""Heads fitted to a target draft its text; files and configurations. Distributions: `tests/heads/drafting`."""

import pytest
import torch
from helpers.doc_snippets import run_snippet
from helpers.medusa_files import authors_tensors, fitted_heads, random_heads, write
from helpers.tiny import prompt, tiny_llama

import treespec
from treespec import TreeSpeculation
from treespec.errors import CheckpointError, ConfigError, VocabularyMismatchError
from treespec.heads import Medusa, MedusaHeads
from treespec.policies import Chain, Paths

GREEDY = {"max_new_tokens": 40, "do_sample": False}
DEEP = Paths([(0,) * depth for depth in range(1, 8)])
AUTHORS_TREE = [(0,), (0, 0), (1,), (0, 1), (0, 0, 0), (1, 0), (2,), (0, 2), (0, 0, 1), (0, 0, 0, 0)]


@pytest.fixture(scope="module")
def target():
    return tiny_llama()


@pytest.fixture(scope="module")
def heads(target):
    return fitted_heads(target, target.generate(prompt(2, 8), **GREEDY))


def acceptance(target, drafter, tree) -> float:
    """Mean acceptance length of a call whose output is plain `generate`'s."""
    speculation = drafter if isinstance(drafter, TreeSpeculation) else TreeSpeculation(Medusa(drafter), tree=tree)
    out = target.generate(prompt(2, 8), **GREEDY, custom_generate=speculation)
    assert torch.equal(out, target.generate(prompt(2, 8), **GREEDY))
    return speculation.stats.mean_acceptance_length


def test_fitted_heads_are_accepted_and_shifted_ones_are_not(target, heads):
    assert acceptance(target, heads, Chain(9)) > 1.8  # Deeper than the heads.
    shifted = MedusaHeads(heads.heads[1:])
    assert acceptance(target, shifted, Chain(3)) < 1.4


@pytest.mark.parametrize("tree", [AUTHORS_TREE, DEEP], ids=["authors", "deep"])
def test_trees_are_accepted_further_than_chains(target, heads, tree):
    assert acceptance(target, heads, tree) >= acceptance(target, heads, Chain(3))


def test_trees_near_the_end_of_the_context():
    target = tiny_llama(max_position_embeddings=32)
    speculation = TreeSpeculation(Medusa(random_heads(3)), tree=8, record_steps=True)
    ids, options = prompt(2, 20), {"max_length": 32, "do_sample": False}
    assert torch.equal(target.generate(ids, **options, custom_generate=speculation), target.generate(ids, **options))
    assert speculation.steps[1].trees[0].num_nodes == 8, "the prompt's own feature is used"


def test_heads_of_another_model_are_refused(target):
    for heads, error in (
        (random_heads(vocab_size=60), VocabularyMismatchError),
        (random_heads(vocab_size=70), VocabularyMismatchError),
        (random_heads(hidden_size=16), CheckpointError),
    ):
        with pytest.raises(error, match="another model"):
            target.generate(prompt(1, 8), **GREEDY, custom_generate=TreeSpeculation(Medusa(heads)))


def test_from_config(target, heads, tmp_path):
    folder = str(write(tmp_path, authors_tensors(heads)))
    config = {"method": "medusa", "model": folder, "num_speculative_tokens": 4}
    assert acceptance(target, treespec.from_config(config, target=target), None) > 1.8
    with pytest.raises(ConfigError, match="head of method 'medusa', the configuration says 'eagle3'"):
        treespec.from_config(config | {"method": "eagle3"}, target=target)


def test_load_drafter_reads_them_with_the_targets_output_weights(target, heads, tmp_path):
    """As text-generation-inference's second version has them: the heads share the target's."""
    blocks = {name: tensor for name, tensor in authors_tensors(heads).items() if "linear" in name}
    folder = write(tmp_path, blocks)
    for source in (folder, folder / "medusa_lm_head.safetensors"):
        drafter = treespec.load_drafter(source, target)
        assert isinstance(drafter, Medusa)
        acceptance(target, treespec.TreeSpeculation(drafter, tree=4), None)
    for options in ({"max_length": 8}, {"hidden_layers": (1,)}):
        with pytest.raises(ConfigError, match="leave out"):
            treespec.load_drafter(folder, target, **options)


def test_the_snippet_of_the_docs_runs(target, heads, tmp_path, monkeypatch):
    (tmp_path / "medusa-vicuna-7b-v1.3").mkdir()
    write(tmp_path / "medusa-vicuna-7b-v1.3", authors_tensors(heads))
    monkeypatch.chdir(tmp_path)
    names = run_snippet("Medusa heads", page="heads.md")
    assert acceptance(target, names["speculation"], None) > 1.8
