"""Suffix lookup: scores and trees equal to counting by brute force; bounded memory."""

import math
from collections import Counter

import numpy as np
import pytest
from helpers.drafter_loop import Loop
from hypothesis import given, settings
from hypothesis import strategies as st

from treespec.drafters import SuffixLookup, SuffixStore
from treespec.drafters.lookup import suffix as suffix_module
from treespec.drafters.lookup import suffix_store as store_module
from treespec.drafters.lookup.suffix_text import LOOK_BACK, MAX_OCCURRENCES, SuffixText
from treespec.errors import CheckpointError, ConfigError, VocabularyMismatchError
from treespec.policies import BestFirst, Chain, KAry
from treespec.tree import SELECTED

TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=40)


def ends_of(texts, ending, is_last_free):
    """(text, position) of every occurrence of `ending`; the very end of the text itself does not count."""
    found = []
    for number, text in enumerate(texts):
        last = len(text) - 1 if is_last_free else len(text)
        found += [(number, e) for e in range(len(ending) - 1, last) if text[e + 1 - len(ending) : e + 1] == ending]
    return found


def path_probs(texts, ends, depth, length, smoothing):
    """Probability of every continuation of a match of `length` tokens, which grows by one token per level.

    The product of count(child) / count(parent), of those that go on, each times match / (match + smoothing).
    """
    counts = Counter()
    for number, end in ends:
        for more in range(1, depth + 1):
            if end + more < len(texts[number]):
                counts[tuple(texts[number][end + 1 : end + 1 + more])] += 1
    totals = Counter()
    for path, count in counts.items():
        totals[path[:-1]] += count
    probs = {(): 1.0}
    for path in sorted(counts, key=len):
        match = length + len(path) - 1
        probs[path] = probs[path[:-1]] * counts[path] / totals[path[:-1]] * match / (match + smoothing)
    del probs[()]
    return probs


def matches(text, stored, lengths, smoothing, depth):
    """Every match's length and the probabilities of its continuations, in both tries."""
    for texts, is_own in (([text], True), (stored, False)):
        for length in lengths:
            yield length, path_probs(texts, ends_of(texts, text[-length:], is_own), depth, length, smoothing)


@given(
    TOKENS,
    st.integers(1, 40),
    st.lists(TOKENS, max_size=3),
    st.integers(1, 6),
    st.integers(1, 2),
    st.sampled_from([(1, 0), (2, 4), (0, 3), (3, 1)]),
    st.sampled_from([0.0, 0.1, 0.4]),
    st.sampled_from([0.0, 0.5, 1.0, 2.0]),
    st.integers(1, 6),
)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_the_tree_has_the_best_score_of_all_lengths_and_tries(
    text, num_prompt, stored, max_match, more, budget_rule, least, smoothing, depth
):
    """In a text of which a step emitted all but the prompt, with a store of which a part may be sorted."""
    min_match = min(more, max_match)
    factor, offset = budget_rule
    store = SuffixStore(stored[:1])
    if len(stored) % 2:
        store.text.sort(store.max_match)
    store.add(*stored[1:])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(suffix_module, "NODES_PER_TOKEN", factor)
        patch.setattr(suffix_module, "MORE_NODES", offset)
        lookup = SuffixLookup(max_match, min_match, store, least, smoothing)
        loop = Loop(lookup, [text[:num_prompt]], BestFirst(8))
        if text[num_prompt:]:
            loop.step(loop.propose(depth), emit=[text[num_prompt:]])
        batch = loop.propose(depth)
    tree, values = batch.trees[0], batch.values[0].tolist()
    found, expected = [], 0.0
    for length, probs in matches(text, stored, range(min_match, min(max_match, len(text)) + 1), smoothing, depth):
        likely = sorted((p for p in probs.values() if p >= least), reverse=True)
        expected = max(expected, sum(likely[: min(7, factor * length + offset)]))
        found.append(probs)
    assert sum(values[1:]) == pytest.approx(expected)
    assert all(value >= least for value in values)
    assert max(tree.depths) <= depth
    if tree.num_nodes > 1:  # one match explains the whole tree
        paths = {tuple(tree.token(i) for i in tree.path_to(n)[1:]): values[n] for n in range(1, tree.num_nodes)}
        assert any(all(probs.get(path) == pytest.approx(value) for path, value in paths.items()) for probs in found)


@pytest.mark.parametrize("policy", [BestFirst(7), BestFirst(7, beam=99), KAry((2, 2)), Chain(3)])
def test_suffix_lookup_drafts_what_followed(policy):
    prompts = [[1, 2, 3, 1, 2, 4, 1, 2, 3, 5, 1, 2], [1, 2, 3]]
    batch = Loop(SuffixLookup(smoothing=0.0), prompts, policy).propose(max_depth=3)
    assert batch.num_nodes[1] == 1, "nothing was repeated"
    assert batch.sampling_schemes == {SELECTED}
    tree = batch.trees[0]
    first = tree.children(0)
    assert tree.token(first[0]) == 3
    assert float(batch.values[0, first[0]]) == pytest.approx(2 / 3)
    if len(first) > 1:
        assert tree.token(first[1]) == 4
        assert float(batch.values[0, first[1]]) == pytest.approx(1 / 3)
    assert max(tree.depths) <= 3


def test_prompt_lookup_is_the_longest_match_alone():
    text = [1, 2, 5, 1, 2, 3, 2, 4, 2, 4, 2, 4, 2, 4, 2, 4, 1, 2]
    assert Loop(SuffixLookup(smoothing=0.0), [text], Chain(2)).propose().tokens.tolist() == [[2, 4, 2]]
    assert Loop(SuffixLookup(is_longest_only=True), [text], Chain(2)).propose().tokens.tolist() == [[2, 3, 2]]


@pytest.mark.parametrize("policy", [BestFirst(9), BestFirst(9, beam=99), Chain(8)], ids=str)
@pytest.mark.parametrize(("max_factor", "depth"), [(0.0, 0), (1.4, 2), (math.inf, 8)])
def test_drafts_are_as_long_as_a_multiple_of_the_match(policy, max_factor, depth):
    """The longest match has two tokens."""
    text = [9, 1, 2, *range(10, 20), 8, 1, 2]
    tree = Loop(SuffixLookup(max_factor=max_factor, min_match=2, min_prob=0.0), [text], policy).propose(8).trees[0]
    assert max(tree.depths) == depth


def test_the_most_recent_occurrences_are_followed():
    text = [1, 2] * MAX_OCCURRENCES + [1, 3] * (MAX_OCCURRENCES - 1) + [1, 4, 1]
    index = SuffixText(text)
    (occurrences,) = index.find([1], len(text))
    ranked = index.children(index.ends(occurrences))
    assert [(token, share * MAX_OCCURRENCES) for share, token, _ in ranked] == [(3, MAX_OCCURRENCES - 1), (4, 1)]
    tied = SuffixText([1, 2, 1, 3, 1])
    ranked = tied.children(tied.ends(tied.find([1], 5)[0]))
    assert [token for _, token, _ in ranked] == [3, 2], "of equally frequent ones the most recent stands first"
    flood = SuffixText([1] * (3 * LOOK_BACK))
    assert max(occurrences.num_found for occurrences in flood.find([1] * 4, 3 * LOOK_BACK)) == LOOK_BACK


def test_sorted_occurrences_are_spaced_evenly():
    """Among very many copies, those with every kind of context before them are followed, as often as they came."""
    random = np.random.default_rng(0)
    before = random.choice([2, 3, 4], 3000, p=[0.5, 0.25, 0.25])
    text = SuffixText(np.stack([before, np.zeros_like(before), before], 1).ravel())
    text.sort(4)
    (one,) = text.find([0])
    ends = text.ends(one)
    assert MAX_OCCURRENCES / 2 < len(ends) <= MAX_OCCURRENCES
    shares = {token: share for share, token, _ in text.children(ends)}
    assert shares == pytest.approx({2: 0.5, 3: 0.25, 4: 0.25}, abs=0.05)


def test_a_store_learns_across_calls():
    store = SuffixStore()
    lookup = SuffixLookup(store=store)
    assert lookup.store is store
    loop = Loop(lookup, [[5, 1], [0]], Chain(3))
    loop.step(loop.propose(), emit=[[2, 3, 4], [0]])
    loop.keep_rows([1])
    loop.step(loop.propose(), emit=[[3]])
    assert Loop(lookup, [[1]], Chain(3)).propose().tokens.tolist() == [[1, 2, 3, 4]]
    assert store.texts == [[5, 1, 2, 3, 4], [0, 0, 3]]
    other = Loop(SuffixLookup(store=store), [[4, 3]], Chain(2))
    assert other.propose().tokens.tolist() == [[3, 4]], "no match crosses the end of a text"
    short = SuffixLookup(max_match=2, store=SuffixStore())
    loop = Loop(short, [[1, 2, 3, 4, 5]], Chain(3))
    loop.step(loop.propose(), emit=[[0, 1]])
    assert short.store.texts == [[4, 5, 0, 1]], "of the prompt as much as a match may be long"
    assert short.store.num_tokens == 2 + 4


def test_the_store_is_bounded(monkeypatch):
    monkeypatch.setattr(store_module, "MIN_UNSORTED", 40)
    store, random = SuffixStore(capacity=200), np.random.default_rng(1)
    texts = [random.integers(0, 5, random.integers(1, 60)).tolist() for _ in range(100)]
    for number, text in enumerate(texts):
        store.add(text)
        assert store.num_tokens <= 200
        kept = store.texts
        assert kept[1:] == texts[number + 2 - len(kept) : number + 1], "the newest texts are whole"
        assert texts[number + 1 - len(kept)][-len(kept[0]) :] == kept[0], "the oldest may have lost its beginning"
        assert store.num_tokens - store.text.num_sorted < 40
        found = [len(store.text.ends(o)) for o in store.find(text[-3:])]
        naive = [len(ends_of(kept, text[-m:], False)) for m in range(1, min(3, len(text)) + 1)]
        assert found[: len(naive)] == naive or max(naive) > MAX_OCCURRENCES
    assert store.num_tokens > 140
    store.add(range(1000))
    assert store.num_tokens <= 200


def test_a_store_is_saved_and_loaded(tmp_path):
    store = SuffixStore([[1, 2, 3], [4, 5]], capacity=1000, max_match=7)
    lookup = SuffixLookup(store=store)
    Loop(lookup, [[3]], Chain(2)).step(lookup.propose(1), emit=[[4]])
    store.save(tmp_path / "store.safetensors")
    loaded = SuffixStore.load(tmp_path / "store.safetensors")
    assert loaded.texts == [[1, 2, 3], [4, 5], [3, 4]], "the last call's text is among them"
    assert (loaded.capacity, loaded.max_match) == (1000, 7)
    with pytest.raises(CheckpointError, match="no file"):
        SuffixStore.load(tmp_path / "other.safetensors")


def test_stores_refuse_what_cannot_be():
    with pytest.raises(VocabularyMismatchError, match="holds token 7 and the model's vocabulary has 6"):
        Loop(SuffixLookup(store=SuffixStore([[1, 7]])), [[1]], BestFirst(4))
    for ids in ([1, -1], [1, 1 << 31]):
        with pytest.raises(ConfigError, match=r"in \[0, 2\*\*31\)"):
            SuffixStore([ids])
    for text in ([1.5, 2.0], [[1, 2], [3, 4]], [[1], [2, 3]], "text", 7):
        with pytest.raises(ConfigError, match="flat list of token ids"):
            SuffixStore([text])
    with pytest.raises(ConfigError, match="at least 64"):
        SuffixStore(capacity=3)
    for options in (
        {"min_prob": 1.5},
        {"smoothing": -1.0},
        {"min_prob": [0.1]},
        {"smoothing": True},
        {"smoothing": math.inf},
        {"store": [[1, 2]]},
    ):
        with pytest.raises(ConfigError, match=f"^{next(iter(options))} "):
            SuffixLookup(**options)
    with pytest.raises(ConfigError, match="texts must be lists of token ids, got 5"):
        SuffixStore(texts=5)


def test_many_texts_at_once_never_hold_more_than_fits(monkeypatch):
    class Watched(SuffixText):
        most = 0

        def append(self, tokens):
            super().append(tokens)
            Watched.most = max(Watched.most, len(self))

    monkeypatch.setattr(store_module, "SuffixText", Watched)
    texts = [[number % 50] * 40 for number in range(100)]
    store = SuffixStore(iter(texts), capacity=100)
    assert 50 < Watched.most <= 100 + 41 + 1
    assert store.texts[-1] == texts[-1]
    store.add(*texts)
    assert Watched.most <= 100 + 41 + 1
    assert store.num_tokens <= 100
