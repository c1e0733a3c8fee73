"""Tables and texts that are kept: counted as by plain loops, saved and loaded whole, refused when damaged."""

import json
import re

import numpy as np
import pytest
import torch
from helpers.doc_snippets import run_snippet
from helpers.drafter_loop import Loop
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from treespec.drafters import SuffixStore, TokenRecycling, WarmStart
from treespec.drafters.lookup.recycling_table import WARM_TRIALS, Table, count_table, pack_ids, unpack_ids
from treespec.errors import CheckpointError, ConfigError, VocabularyMismatchError
from treespec.policies import BestFirst

VOCAB = 7


def random_table(seed=0, vocab_size=VOCAB, width=3):
    random = np.random.default_rng(seed)
    rows = np.stack([random.permutation(vocab_size)[:width] for _ in range(vocab_size)])
    rows[random.random(vocab_size) < 0.4] = -1
    hits, trials = torch.arange(width, 0, -1), torch.tensor([width + 1])
    return Table(torch.from_numpy(rows), torch.cat([hits, trials]).float())


@given(st.lists(st.tuples(st.integers(0, 4), st.permutations(range(5)), st.booleans()), min_size=1, max_size=30))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_counted_tables_equal_a_loop(samples):
    tokens = torch.tensor([token for token, _, _ in samples])
    top = torch.tensor([order[:3] if is_asked else [-1] * 3 for _, order, is_asked in samples])
    table = count_table(tokens, top, 5)
    votes, asked = np.zeros((5, 5)), 0
    for token, order, is_asked in samples:
        for rank, candidate in enumerate(order[:3] if is_asked else []):
            votes[token, candidate] += 0.5**rank
        asked += is_asked
    hits = np.zeros(4)
    for token in range(5):
        row = table.candidates[token].tolist()
        known = [candidate for candidate in row if candidate >= 0]
        assert len(set(known)) == len(known) == min(3, (votes[token] > 0).sum())
        assert row[len(known) :] == [-1] * (3 - len(known))
        assert votes[token][known].tolist() == sorted(votes[token], reverse=True)[: len(known)]
    for token, order, is_asked in samples:
        if is_asked:
            hits[:3] += table.candidates[token].numpy() == order[0]
            hits[3] += 1
    np.testing.assert_allclose(table.hits, hits * min(1, WARM_TRIALS / max(asked, 1)), rtol=1e-6)


def test_counts_of_long_texts_weigh_like_a_thousand_trials():
    tokens = torch.zeros(5000, dtype=torch.int64)
    table = count_table(tokens, torch.ones(5000, 1, dtype=torch.int64), 2)
    assert table.hits.tolist() == [WARM_TRIALS, WARM_TRIALS]


def test_a_warm_table_drafts_at_once_and_goes_on_learning():
    table = random_table()
    drafter = TokenRecycling(table=table)
    assert drafter.num_candidates == 3
    known = int((table.candidates[:, 0] >= 0).nonzero()[0])
    loop = Loop(drafter, [[known]], BestFirst(4), vocab_size=VOCAB)
    batch = loop.propose()
    assert batch.max_nodes == 4
    assert batch.tokens[0, 1] == table.candidates[known, 0]
    loop.step(batch, torch.randn(1, 4, VOCAB, generator=torch.Generator().manual_seed(0)))
    assert not torch.equal(drafter.table, table.candidates)
    assert torch.equal(table.candidates, random_table().candidates), "the given table stays as it is"
    with pytest.raises(VocabularyMismatchError, match="7 tokens and the model has 9"):
        Loop(drafter, [[1]], BestFirst(4), vocab_size=9)


def test_recycling_is_saved_and_loaded(tmp_path):
    path = tmp_path / "table.safetensors"
    with pytest.raises(ConfigError, match="first call"):
        TokenRecycling().save(path)
    drafter = TokenRecycling(num_candidates=3)
    loop = Loop(drafter, [[1, 2]], BestFirst(5), vocab_size=VOCAB)
    for step in range(8):
        batch = loop.propose()
        loop.step(batch, torch.randn(*batch.tokens.shape, VOCAB, generator=torch.Generator().manual_seed(step)))
    drafter.save(path)
    loaded = TokenRecycling.load(path)
    assert torch.equal(loaded.table, drafter.table)
    assert torch.equal(loaded.rank_probs, drafter.rank_probs)
    text = [1, 2, 5]
    twins = [Loop(part, [text], BestFirst(5), vocab_size=VOCAB).propose().tokens.tolist() for part in (drafter, loaded)]
    assert twins[0] == twins[1]
    assert [file.name for file in tmp_path.iterdir()] == ["table.safetensors"]


def warm_start(vocab_size=VOCAB):
    texts = [torch.tensor([1, 2, 3, 4]), torch.tensor([5]), torch.tensor([0, 6, 1])]
    top = torch.tensor([[2, 3], [3, 4], [4, 0], [-1, -1], [-1, -1], [6, 1], [1, 2], [-1, -1]])
    return WarmStart.from_texts(texts, top, vocab_size, {"model": "toy"})


TEXT, TOP = torch.tensor([1, 2]), torch.tensor([[2, 3], [-1, -1]])


@pytest.mark.parametrize(
    ("texts", "top", "vocab_size", "words"),
    [
        ([], TOP[:0], VOCAB, "at least one tensor"),
        ([TEXT, TEXT[:0]], TOP, VOCAB, "text 1 must be token ids"),
        ([TEXT.float()], TOP, VOCAB, "got torch.float32"),
        ([TEXT], TOP, 2, "from 1 to 2 in a vocabulary of 2"),
        ([TEXT, TEXT], TOP, VOCAB, "top must have 4 rows"),
        ([TEXT], TOP[0], VOCAB, r"top must be token ids int64 \[T, k\] and not empty, got torch.int64 \[2\]"),
        ([TEXT], TOP, 3, "top holds ids from -1 to 3 in a vocabulary of 3"),
        ([TEXT], torch.tensor([[2, -1], [-1, -1]]), VOCAB, "-1 alone"),
        ([TEXT], TOP, 7.0, "vocab_size must be a positive int"),
    ],
)
def test_texts_that_cannot_be_counted_are_refused(texts, top, vocab_size, words):
    with pytest.raises(ConfigError, match=words):
        WarmStart.from_texts(texts, top, vocab_size)


def test_a_file_that_says_a_huge_vocabulary_is_refused_before_memory_is_asked_for(tmp_path, monkeypatch):
    start, path = warm_start(70_000), tmp_path / "file.safetensors"
    start.save(path)
    full = torch.full
    monkeypatch.setattr(
        torch, "full", lambda shape, *rest, **at: full(shape, *rest, **at) if shape[0] < 1 << 20 else 1 / 0
    )
    assert WarmStart.load(path).vocab_size == 70_000
    for found, words in {"2000000000": "more than any model has", "9" * 5000: "vocab_size, got '999"}.items():
        meta(vocab_size=found)(path)
        with pytest.raises(CheckpointError, match=words):
            WarmStart.load(path)


@pytest.mark.parametrize("vocab_size", [VOCAB, 70_000])
def test_warm_starts_are_saved_and_loaded(tmp_path, vocab_size):
    start = warm_start(vocab_size)
    start.save(tmp_path / "warm.safetensors")
    loaded = WarmStart.load(tmp_path / "warm.safetensors")
    assert loaded.vocab_size == vocab_size
    assert loaded.num_tokens == 8
    assert loaded.about == {"model": "toy"}
    assert [text.tolist() for text in loaded.texts] == [text.tolist() for text in start.texts]
    assert torch.equal(loaded.table.candidates, start.table.candidates)
    assert torch.equal(loaded.table.hits, start.table.hits)
    recycling, suffix = loaded.drafters()
    assert Loop(recycling, [[2]], BestFirst(3), vocab_size=vocab_size).propose().tokens.tolist() == [[2, 3, 4]]
    assert Loop(suffix, [[6, 2]], BestFirst(3), vocab_size=vocab_size).propose().tokens.tolist() == [[2, 3, 4]]
    for part in loaded.drafters():
        with pytest.raises(VocabularyMismatchError):
            Loop(part, [[1]], BestFirst(3), vocab_size=4)


def test_ids_are_packed_as_small_as_they_fit():
    ids = torch.tensor([[0, -1], [65_534, 3]])
    assert pack_ids(ids, 65_535).dtype == torch.uint16
    assert pack_ids(ids, 65_536).dtype == torch.int32
    for vocab_size in (65_535, 65_536):
        assert torch.equal(unpack_ids(pack_ids(ids, vocab_size), "ids", vocab_size, "file"), ids)
    with pytest.raises(CheckpointError, match="id 65534 in a vocabulary of 5 tokens"):
        unpack_ids(pack_ids(ids, 5), "ids", 5, "file")


def rewrite(path, metadata, tensors):
    """Change some metadata and some tensors of a file; None removes a tensor."""
    with safe_open(path, "pt") as file:
        kept = file.metadata() | metadata
    changed = load_file(path) | tensors
    save_file({name: tensor for name, tensor in changed.items() if tensor is not None}, path, metadata=kept)


def meta(**changes):
    return lambda path: rewrite(path, changes, {})


def held(**changes):
    return lambda path: rewrite(path, {}, changes)


def ids(*numbers, dtype=torch.int32):
    return torch.tensor(numbers, dtype=dtype)


MADE = {
    TokenRecycling: lambda: warm_start().recycling(),
    WarmStart: warm_start,
    SuffixStore: lambda: SuffixStore([[1, 2]]),
}
TABLES, WARM, STORE = (TokenRecycling, WarmStart), (WarmStart,), (SuffixStore,)
FIVE = torch.zeros(5, dtype=torch.uint16)
DAMAGE = [
    (tuple(MADE), lambda path: path.write_bytes(b""), "cannot be read"),
    (tuple(MADE), lambda path: path.write_bytes(b"PK\x03\x04" + bytes(99)), "cannot be read"),
    (tuple(MADE), meta(format="treespec-x-2"), "has the format 'treespec-x-2', expected"),
    (tuple(MADE), lambda path: path.unlink(), "there is no file"),
    (TABLES, held(hits=None), "lacks the tensors hits"),
    (TABLES, meta(vocab_size="many"), "vocab_size, got 'many'"),
    (TABLES, meta(vocab_size="3"), "in a vocabulary of 3 tokens"),
    (TABLES, held(hits=torch.zeros(9)), "hits [k + 1], got"),
    (TABLES, held(hits=torch.full((3,), torch.nan)), "hits must be counts"),
    (TABLES, held(hits=torch.tensor([1e30, 1.0, 2.0])), "above the number of trials"),
    (TABLES, held(known=torch.zeros(5)), "must be torch.uint16"),
    (TABLES, held(known=FIVE), "different ids known"),
    (WARM, held(lengths=ids(9, -1)), "lengths sum to T"),
    (WARM, held(lengths=ids([3], [5])), "lengths sum to T"),
    (WARM, held(tokens=torch.full((8,), 65_535, dtype=torch.uint16)), "must be ids"),
    (WARM, meta(about="[1]"), "about must be a JSON object"),
    (STORE, held(tokens=ids(-1, -5)), "must be int32"),
    (STORE, held(tokens=torch.zeros(3)), "must be int32"),
    (STORE, held(tokens=ids(1, 2, -1)), "between -1s"),
    (STORE, meta(capacity="much"), "lacks a store's capacity"),
]


@pytest.mark.parametrize(("kind", "spoil", "words"), [(kind, *rest) for kinds, *rest in DAMAGE for kind in kinds])
def test_damaged_files_are_refused(tmp_path, kind, spoil, words):
    path = tmp_path / "file.safetensors"
    MADE[kind]().save(path)
    kind.load(path)
    spoil(path)
    with pytest.raises(CheckpointError, match=re.escape(words)):
        kind.load(path)


@pytest.mark.parametrize("name", ["nowhere/file.safetensors", "folder"])
def test_where_nothing_can_be_written_nothing_is_left(name, tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(CheckpointError, match="cannot be written"):
        warm_start().save(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_the_shipped_set():
    start = WarmStart.shipped("HuggingFaceTB/SmolLM2-135M-Instruct")
    assert start.vocab_size == 49_152
    assert start.num_tokens > 150_000
    assert json.loads(json.dumps(start.about)) == start.about
    assert {"model", "command", "num_tokens", "num_prompts", "writing"} <= set(start.about)
    assert start.about["num_prompts"] == 0, "no given prompt takes part"
    with pytest.raises(CheckpointError, match=r"there are smollm2-135m-instruct.*treespec warm-up"):
        WarmStart.shipped("other")


@pytest.mark.parametrize("heading", ["Suffix lookup", "Warm starts"])
def test_the_snippets_of_the_docs_run(heading, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = run_snippet(heading)
    if heading == "Suffix lookup":
        assert names["speculation"].stats.mean_acceptance_length > names["before"]
