"""`TreeScorer`: six rounds of tree and commit stay equal to uncached passes, and planted bugs do not."""

import pytest
import torch
from helpers.medusa_files import random_heads
from helpers.rounds import NAMES, PLANTED, RAGGED_LENGTHS, Game, prefilled, uncached_logits
from helpers.zoo import SIZES, VOCAB_SIZE, WINDOW, build
from transformers import DynamicCache
from transformers.cache_utils import DynamicSlidingWindowLayer

from treespec.engine.loop import Run, speculate
from treespec.errors import ConfigError, ContextFullError, TreespecError, UnsupportedModelError
from treespec.heads import Medusa
from treespec.hf import TreeScorer, make_scorer
from treespec.hf.cache import slot_cache
from treespec.hf.generation.stopping import TreeStopping
from treespec.hf.introspect import CACHE_NAME
from treespec.protocols import Capability

TOLERANCE = 1e-4
STATIC_LENGTH = 160


def scorer_for(model, is_static=False, **options):
    return TreeScorer(model, max_cache_len=STATIC_LENGTH if is_static else None, **options)


@pytest.mark.parametrize(("attention", "is_static"), [("eager", False), ("sdpa", True)])
@pytest.mark.parametrize("name", NAMES)
def test_six_rounds_equal_uncached_passes(name, attention, is_static):
    """Default scorers of `make_scorer` have their own tests, for every architecture."""
    model = build(name, attention)
    game = Game(model, scorer_for(model, is_static), RAGGED_LENGTHS)
    for rows in ([2, 0], [1], [0]):
        assert game.play(2) <= TOLERANCE
        assert game.cache_error() <= TOLERANCE
        game.select_rows(rows)


@pytest.mark.parametrize("name", ["gemma3_text", "gpt2"])
def test_chains_without_masks_equal_uncached_passes(name):
    """Through the model's own causal and sliding masks, which count slots, in batches with left padding."""
    model = build(name)
    scorer = scorer_for(model, capability=Capability.CHAIN)
    assert Game(model, scorer, RAGGED_LENGTHS).play(6) <= TOLERANCE


@pytest.mark.parametrize("name", ["mistral", "gemma3_text"])
def test_chain_beyond_the_window_gets_no_mask_and_is_right(name, monkeypatch):
    model = build(name)
    scorer = scorer_for(model)
    seen = []
    prepared = scorer._prepared
    monkeypatch.setattr(scorer, "_prepared", lambda *args, **kw: seen.append(args[1].mask) or prepared(*args, **kw))
    ids = torch.randint(1, VOCAB_SIZE, (1, 3 * WINDOW), generator=torch.Generator().manual_seed(0))
    scorer.prefill(ids[:, :-4], torch.ones(1, 3 * WINDOW - 4, dtype=torch.bool))
    logits = scorer.extend(ids[:, -4:-1], torch.tensor([[-1, 0, 1]])).logits
    last = scorer.extend(ids[:, -1:], torch.tensor([[2]])).logits
    expected = uncached_logits(model, ids[0].tolist())[-4:]
    torch.testing.assert_close(torch.cat([logits, last], 1)[0], expected, atol=TOLERANCE, rtol=0)
    assert seen == [None, None, None]


@pytest.mark.parametrize(("lengths", "is_static"), [([0, 0], True), ([0, 12], False)], ids=str)
def test_prompts_of_one_token(lengths, is_static):
    model = build("mistral")
    assert Game(model, scorer_for(model, is_static), lengths).play(4) <= TOLERANCE


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_takes_block_masks():
    torch.compiler.set_stance("force_eager")
    try:
        model = build("gemma3_text", "flex_attention")  # Which makes a pass too.
        assert Game(model, scorer_for(model), RAGGED_LENGTHS).play(3) <= TOLERANCE
    finally:
        torch.compiler.set_stance("default")


def test_inference_mode():
    model = build("mistral")
    with torch.inference_mode():
        assert Game(model, scorer_for(model), RAGGED_LENGTHS).play(3) <= TOLERANCE


def test_forests_and_padding_rows():
    """Several nodes may stand on the last committed token; a row may have nothing but padding."""
    model = build("mistral")
    scorer = scorer_for(model)
    prompt = torch.randint(1, VOCAB_SIZE, (2, 12), generator=torch.Generator().manual_seed(0))
    scorer.prefill(prompt, torch.ones_like(prompt, dtype=torch.bool))
    tokens = torch.tensor([[5, 6, 7], [0, 0, 0]])
    logits = scorer.extend(tokens, torch.tensor([[-1, -1, 1], [-2, -2, -2]])).logits
    text = prompt[0].tolist()
    for node, path in enumerate([[5], [6], [6, 7]]):
        expected = uncached_logits(model, text + path)[-1]
        torch.testing.assert_close(logits[0, node], expected, atol=TOLERANCE, rtol=0)
    assert logits.isfinite().all()
    scorer.commit([[1, 2], []])
    logits = scorer.extend(torch.tensor([[8], [9]]), torch.tensor([[-1], [-1]])).logits[:, 0]
    texts = [[*text, 6, 7, 8], [*prompt[1].tolist(), 9]]
    expected = [uncached_logits(model, ids)[-1] for ids in texts]
    torch.testing.assert_close(logits, torch.stack(expected), atol=TOLERANCE, rtol=0)


def test_hidden_states_of_columns_that_were_computed_only():
    model = build("llama")
    scorer = scorer_for(model, hidden_layers=(1,))
    ids, mask = torch.arange(1, 10).unsqueeze(0).repeat(2, 1), torch.ones(2, 9, dtype=torch.bool)
    mask[:, :2] = False
    assert scorer.prefill(ids, mask).hidden_states[1].shape[1] == 7
    assert scorer.prefill(ids[:, :0], mask[:, :0]).hidden_states == {}


def test_a_layer_that_is_not_there_is_refused():
    scorer = scorer_for(build("llama"), hidden_layers=(7,))
    with pytest.raises(ConfigError, match=r"\[7\]"):
        scorer.prefill(torch.ones(1, 3, dtype=torch.int64), torch.ones(1, 3, dtype=torch.bool))


class TestGivenCache:
    """A cache that the caller keeps."""

    PROMPT = torch.arange(1, 17).unsqueeze(0)

    def filled(self, model, length, num_rows=1):
        cache = DynamicCache()
        with torch.no_grad():
            model(input_ids=self.PROMPT[:, :length].expand(num_rows, -1), **{CACHE_NAME: cache}, use_cache=True)
        return cache

    @pytest.mark.parametrize("length", [5, 16])
    def test_is_continued(self, length):
        model = build("mistral")
        cache = self.filled(model, length)
        scorer = prefilled(TreeScorer(model, cache=cache), self.PROMPT)
        assert scorer.cache is cache
        logits = scorer.extend(torch.tensor([[3, 4]]), torch.tensor([[-1, -1]])).logits[0]
        expected = [uncached_logits(model, [*self.PROMPT[0].tolist(), token])[-1] for token in (3, 4)]
        torch.testing.assert_close(logits, torch.stack(expected), atol=TOLERANCE, rtol=0)
        assert prefilled(scorer, self.PROMPT).cache is not cache, "it serves one prefill"

    def test_empty_ones_are_not_used(self):
        model = build("mistral")
        cache = DynamicCache(config=model.config)
        assert prefilled(TreeScorer(model, cache=cache), self.PROMPT).cache is not cache

    @pytest.mark.parametrize(("length", "num_rows"), [(16, 1), (5, 2)], ids=["too long", "other rows"])
    def test_of_another_prompt_is_refused(self, length, num_rows):
        model = build("llama")
        scorer = TreeScorer(model, cache=self.filled(model, length, num_rows))
        with pytest.raises(UnsupportedModelError, match="prefix of the prompt"):
            scorer.prefill(self.PROMPT[:, :8], torch.ones(1, 8, dtype=torch.bool))

    def test_that_forgets_tokens_or_is_none_is_refused(self):
        model = build("mistral")
        cache = DynamicCache(config=model.config)
        with torch.no_grad():
            model(input_ids=self.PROMPT, **{CACHE_NAME: cache}, use_cache=True)
        assert isinstance(cache.layers[0], DynamicSlidingWindowLayer)
        with pytest.raises(UnsupportedModelError, match="DynamicSlidingWindowLayer"):
            TreeScorer(model, cache=cache)
        with pytest.raises(UnsupportedModelError, match="tuple"):
            TreeScorer(model, cache=((),))  # pyright: ignore[reportArgumentType]


class TestLimits:
    def test_learned_positions_end(self):
        model = build("gpt2")
        scorer = scorer_for(model)
        assert scorer.max_positions == SIZES["max_position_embeddings"]
        ids = torch.ones(1, SIZES["max_position_embeddings"] - 2, dtype=torch.int64)
        scorer.prefill(ids, torch.ones_like(ids, dtype=torch.bool))
        with pytest.raises(ContextFullError, match="257"):
            scorer.extend(torch.tensor([[1, 1, 1]]), torch.tensor([[-1, 0, 1]]))
        # Many nodes fit as long as none is too deep, and the refusal has changed nothing.
        logits = scorer.extend(torch.tensor([[1, 2, 3, 4]]), torch.tensor([[-1, 0, 0, 0]])).logits
        expected = uncached_logits(model, [1] * (SIZES["max_position_embeddings"] - 1) + [4])[-1]
        torch.testing.assert_close(logits[0, 3], expected, atol=TOLERANCE, rtol=0)
        with pytest.raises(ContextFullError):
            scorer.prefill(torch.ones(1, 257, dtype=torch.int64), torch.ones(1, 257, dtype=torch.bool))

    def test_computed_positions_do_not(self):
        assert scorer_for(build("gemma3_text")).max_positions is None

    def test_static_cache_is_full(self):
        ids = torch.ones(1, 8, dtype=torch.int64)
        scorer = prefilled(TreeScorer(build("llama"), max_cache_len=12), ids)
        with pytest.raises(ContextFullError, match="12 slots has 4 free"):
            scorer.extend(torch.ones(1, 5, dtype=torch.int64), torch.tensor([[-1, 0, 0, 0, 0]]))
        scorer.extend(torch.ones(1, 4, dtype=torch.int64), torch.tensor([[-1, 0, 0, 0]]))
        with pytest.raises(ContextFullError):
            prefilled(TreeScorer(build("llama"), max_cache_len=5), ids)

    def test_static_cache_is_repacked_when_holes_fill_it(self, monkeypatch):
        repack, moves = slot_cache.SlotCache._repack, []
        monkeypatch.setattr(
            slot_cache.SlotCache, "_repack", lambda slots: moves.append(slots.num_holes) or repack(slots)
        )
        model, num_slots = build("mistral"), 48
        game = Game(model, TreeScorer(model, max_cache_len=num_slots), [10, 12])
        while max(len(row) for row in game.rows) + 6 <= num_slots:
            game.round(max_nodes=6)
        assert game.worst <= TOLERANCE
        assert len(moves) >= 1
        assert min(moves) > 0


def call(method, num_rows, parents, **options):
    """Extend or commit after a prompt of three tokens in each row."""
    scorer = scorer_for(build("llama"), **options)
    if num_rows:
        scorer.prefill(torch.ones(num_rows, 3, dtype=torch.int64), torch.ones(num_rows, 3, dtype=torch.bool))
    if method == "commit":
        scorer.extend(torch.ones(num_rows, 2, dtype=torch.int64), torch.tensor([[-1, 0]] * num_rows))
        scorer.commit(parents)
    else:
        scorer.extend(torch.ones(1, len(parents[0]), dtype=torch.int64), torch.tensor(parents))


CHAINS, SINGLES = {"capability": Capability.CHAIN}, {"capability": Capability.PLAIN}


@pytest.mark.parametrize(
    ("method", "num_rows", "parents", "options", "error", "message"),
    [
        ("extend", 0, [[-1]], {}, TreespecError, "prefill"),
        ("extend", 2, [[-1]], {}, TreespecError, r"\[2, F\]"),
        ("commit", 2, [[0]], {}, TreespecError, "one path for each of 2 rows"),
        ("commit", 1, [[0, 2]], {}, TreespecError, "outside the 2 scored ones"),
        ("extend", 1, [[-1, 0, 0]], CHAINS, UnsupportedModelError, "only score chains"),
        ("extend", 1, [[-1, 0]], SINGLES, UnsupportedModelError, "one token at a time"),
    ],
)
def test_misuse(method, num_rows, parents, options, error, message):
    with pytest.raises(error, match=message):
        call(method, num_rows, parents, **options)


def test_a_scorer_without_the_states_that_a_drafter_reads_is_refused():
    prompt = torch.tensor([[3, 5, 7]])
    mask, stopping = torch.ones_like(prompt, dtype=torch.bool), TreeStopping([], 1, None)
    with pytest.raises(ConfigError, match=r"make_scorer\(model, hidden_layers=\(-1,\)\)"):
        speculate(Run(make_scorer(build("llama")), Medusa(random_heads()), prompt, mask, stopping))


@pytest.mark.parametrize("bug", PLANTED)
def test_planted_bugs_make_far_more_than_rounding(bug, monkeypatch):
    name, plant = PLANTED[bug]
    plant(monkeypatch)
    model = build(name)
    game = Game(model, scorer_for(model), RAGGED_LENGTHS)
    assert game.play(3) > 0.1
    if bug == "compaction forgotten":
        assert game.cache_error() > 0.1
