"""The self-test finds known mistakes of speculative decoding, planted into the engine, and names each of them."""

from functools import partial
from importlib.metadata import PackageNotFoundError
from itertools import count
from unittest import mock

import pytest
import torch
from helpers.tiny import noisy_copy, tiny_llama
from helpers.zoo import build

from benchmarks.joint_distribution import planted_bugs as bugs
from treespec import KAry, TreeSpeculation, check, checks
from treespec.engine.streams import Streams
from treespec.engine.target_probs import TargetProbs
from treespec.hf import make_scorer
from treespec.hf.attention import mask
from treespec.hf.cache import slot_cache
from treespec.hf.cache.caches import filled_layers
from treespec.hf.cache.slot_cache import SlotCache
from treespec.hf.models import tree_scorer
from treespec.hf.recurrent import nodes
from treespec.protocols import Capability

swapped = mock.patch.object
COUNT = count()
attended_keys, ids_of = mask._attended_keys, TargetProbs._ids
right_ancestors = nodes.ancestor_mask
keep_paths, select_rows = slot_cache.keep_paths, SlotCache.select_rows
residual = bugs.MistakenRejection("recursive", lambda probs, rest, above, is_leaf: probs)
bonus = bugs.MistakenRejection(
    "recursive", lambda probs, rest, above, is_leaf: above if is_leaf and above is not None else rest
)


def siblings_visible(slots, ancestors, num_new):
    return attended_keys(slots, torch.ones_like(ancestors).tril(), num_new)


def backwards(layers, num_slots, paths):
    keep_paths(layers, num_slots, [list(path)[::-1] for path in paths])


def stale_rows(self, rows):
    for layer in filled_layers(self.cache):
        layer.keys[list(rows)] = layer.keys[: len(rows)].clone()
    select_rows(self, rows)


def seedless(seed, device):
    return Streams(*(torch.Generator(device).manual_seed(next(COUNT)) for _ in range(3)))


def root_ids(self, row, node):
    return ids_of(self, row, 0)


@pytest.fixture(scope="module")
def models():
    target = tiny_llama()
    draft = noisy_copy(target, noise=0.4)
    for model in (target, draft):
        make_scorer(model)  # The self-check of a model's first use would see through the mistakes planted later.
    return target, draft


PASSES, CACHE, SAMPLING, GIVEN = "tree logits", "cache after many rounds", "sampling", "sampling, given drafter"
ENGINE = {
    "positions by index": (PASSES, "index, not its depth", tree_scorer, "pending_attention", bugs.slot_positions),
    "siblings visible": (PASSES, "sees its siblings", mask, "_attended_keys", siblings_visible),
    "ancestors hidden": (PASSES, "not see its ancestors", mask, "_attended_keys", bugs.keys_without_ancestors),
    "commit forgotten": (PASSES, "not hold the accepted path", slot_cache, "keep_paths", bugs.keep_first_slots),
    "wrong order of commit": (CACHE, "commit in the wrong order", slot_cache, "keep_paths", backwards),
    "stale rows": ("batch, rows leave", "after a row has left", SlotCache, "select_rows", stale_rows),
    "a processor's ids, dense": ("processors along paths", "wrong ids", TargetProbs, "_paths", bugs.empty_paths),
    "a processor's ids": ("processors along paths", "wrong ids", TargetProbs, "_ids", root_ids),
}


@pytest.mark.parametrize("fault", ENGINE)
def test_faults_of_the_engine_are_named(models, fault, monkeypatch):
    name, words, owner, attribute, stand_in = ENGINE[fault]
    monkeypatch.setattr("treespec.verification.dispatch.DENSE_ON_CPU", 1 << 12 if "dense" in fault else 0)
    with swapped(owner, attribute, stand_in):
        found = check(models[0], only=[name])
    assert words in str(found)
    assert not found.is_right


def test_layers_with_states_are_tested_too():
    model = build("bamba")
    assert make_scorer(model).capability == Capability.TREE
    found = check(model, num_samples=32)
    assert found.is_right, str(found)
    with swapped(nodes, "ancestor_mask", lambda parents: right_ancestors(parents) | torch.ones(1, 8, 8).tril().bool()):
        assert "sees its siblings" in str(check(model, only=["tree logits"]))


def drafting_raw(models):
    return TreeSpeculation(bugs.RawDistributions(make_scorer(models[1])), tree=KAry((2, 2), children="iid"))


def ruled_by(rule, models):
    return TreeSpeculation(models[1], tree=KAry((2, 2), children="iid"), verification=rule)


DISTRIBUTIONS = {
    "draft probabilities without temperature": (drafting_raw, GIVEN, "draft probabilities"),
    "residual of the target": (partial(ruled_by, residual), SAMPLING, "acceptance or residual"),
    "residual of the target, enumerated": (partial(ruled_by, residual), "rule, by enumeration", "rule 'recursive' on"),
    "bonus from the parent": (partial(ruled_by, bonus), SAMPLING, "bonus tokens"),
}


@pytest.mark.parametrize("fault", DISTRIBUTIONS)
def test_faults_of_distributions_are_named(models, fault):
    make, name, words = DISTRIBUTIONS[fault]
    found = check(models[0], make(models), only=[name], num_samples=512)
    assert [f.name for f in found.failures] == [name], str(found)
    assert words in str(found)


def test_a_seed_that_is_not_used_is_found(models):
    with swapped(Streams, "from_seed", seedless):
        found = check(models[0], only=["seeds"])
    assert "same seed and the same drafts gave different texts" in found.failures[0].text


def test_nothing_is_found_where_nothing_is_wrong(models):
    found = check(models[0], TreeSpeculation(models[1], tree=KAry((2, 2), children="iid")), num_new=16, num_samples=256)
    assert found.is_right, str(found)
    assert len(found.findings) == 12
    assert found.about["drafter"] == "DraftModel"
    assert found.about["tree"] == "KAry"


def test_a_lossy_rule_leaves_sampled_checks_out_of_the_progress_too(models):
    shares = {}
    lossy = TreeSpeculation(models[1], tree=4, verification="typical_acceptance")
    found = check(models[0], lossy, only=["seeds", "sampling"], on_progress=shares.__setitem__)
    assert [finding.name for finding in found.findings] == ["lossy rule", "seeds"]
    assert shares == {"seeds": 1.0}


def test_versions_without_metadata(monkeypatch):
    """Run from a folder that is not installed."""

    def version(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(checks, "version", version)
    model = tiny_llama()
    found = check(model, TreeSpeculation(noisy_copy(model), tree=4), only=["rule, by enumeration"])
    assert found.about["versions"] == {}
