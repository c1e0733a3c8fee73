"""Draft models with other tokens than the target's, on toy vocabularies: maps, texts, distributions, trees."""

import pytest
import torch
from helpers.drafter_loop import Loop, Recent, check_distributions
from helpers.toy_codec import ToyCodec
from helpers.toy_models import TableLM, ToyScorer

from benchmarks.joint_distribution.cases import PLAIN, WARPED
from benchmarks.joint_distribution.run import Case, run_case, tiny_models
from treespec.drafters import DraftModel, ReEncoding, SharedVocabulary
from treespec.drafters.model.reencoding import longest_path, tree_of_paths
from treespec.drafters.model.token_map import Translator, continue_text, shared_tokens, spell
from treespec.errors import ConfigError, VocabularyMismatchError
from treespec.hf import make_scorer
from treespec.policies import BestFirst, Chain, KAry, Paths
from treespec.protocols import Capability
from treespec.tree import IID, SELECTED, WITHOUT_REPLACEMENT, TokenTree

TARGET = ToyCodec(["<s>", "a", "b", "c", "ab", "bc", "<end>", "d"], {"bos": 0, "eos": 6}, [0])
DRAFT = ToyCodec(["<eot>", "c", "b", "a", "ca", "d", "abc"], {"eos": 0})
DRAFT_IDS = [-1, 3, 2, 1, -1, -1, 0, 5]
V, W = len(TARGET.pieces), len(DRAFT.pieces)


def intersection():
    ids = shared_tokens(TARGET, DRAFT)
    return SharedVocabulary(ids, Translator(TARGET, DRAFT, ids))


def test_tokens_match_by_what_they_spell_special_ones_by_name_or_role():
    assert shared_tokens(TARGET, DRAFT).tolist() == DRAFT_IDS
    assert shared_tokens(DRAFT, TARGET).tolist() == [6, 3, 2, 1, -1, 7, -1]
    named = ToyCodec(["<end>", "<x>", "a"], {"eos": 1})
    assert shared_tokens(TARGET, named).tolist() == [-1, 2, -1, -1, -1, -1, 0, -1], "the name goes before the role"
    twice = ToyCodec(["a", "a", "<s>"])
    assert shared_tokens(twice, TARGET).tolist() == [-1, 1, 0], "no draft token stands for two"
    assert shared_tokens(ToyCodec(["<a>"]), ToyCodec(["a"])).tolist() == [-1], "a special token is not text"


def test_shared_tokens_translate_one_to_one_and_the_rest_by_spelling():
    translate = Translator(TARGET, DRAFT, torch.tensor(DRAFT_IDS))
    assert translate([1, 4, 3, 7]) == [3, 3, 2, 1, 5], "ab becomes a and b"
    assert translate([4, 5, 6]) == [3, 2, 2, 1, 0], "special tokens have one meaning in both"
    assert translate([5, 4]) == [2, 4, 2], "a run is spelled out as one: b, ca, b"
    assert translate([4, 99]) == [3, 2], "a token beyond the tokenizer spells nothing"
    assert translate.start([0, 1]) == [3], "the target's beginning is not text"
    begins = ToyCodec(["<begin>", "a"], {"bos": 0}, [0])
    assert Translator(TARGET, begins, shared_tokens(TARGET, begins)).start([0, 1]) == [0, 1]
    assert Translator(TARGET, begins, shared_tokens(TARGET, begins)).start([1]) == [0, 1]


def test_a_text_goes_on_where_a_token_ends():
    assert continue_text(TARGET, b"a", b"cd") == [3, 7]
    assert continue_text(TARGET, b"a", b"bcd") == [], "ab would be one token"
    assert continue_text(TARGET, b"aab", b"cd") == [3, 7], "what comes before is cut as in its text"
    assert continue_text(TARGET, b"", b"") == []
    assert continue_text(TARGET, b"a", b"xd") == [], "x cannot be spelled"


PROMPTS = [[0, 1, 4, 3], [0, 7], [2, 5, 1, 6, 3]]


@pytest.mark.parametrize("processors", [None, Recent(forbidden=[1])], ids=["plain", "processors"])
@pytest.mark.parametrize(
    "policy", [Chain(3), KAry((2, 2), WITHOUT_REPLACEMENT), BestFirst(7)], ids=lambda p: type(p).__name__
)
def test_stored_distributions_are_the_restricted_ones(policy, processors):
    scorer, translator = ToyScorer(TableLM(W)), Translator(TARGET, DRAFT, torch.tensor(DRAFT_IDS))
    loop = Loop(DraftModel(scorer, vocabulary=intersection()), PROMPTS, policy, processors=processors, vocab_size=V)
    num_checked = 0
    for step in range(10):
        if step == 6:
            loop.keep_rows([2, 0])
        batch = loop.propose(max_depth=4)
        options = {"translate": translator, "draft_ids": DRAFT_IDS}
        num_checked += check_distributions(batch, scorer.model, loop, are_values_probs=False, **options)
        loop.step(batch)
    assert num_checked > 60
    assert scorer.num_prefills == 1
    if isinstance(policy, KAry):
        assert scorer.num_passes == 2 * 10, "one per level, catching up included"


class OnlyNotShared:
    """Allows the tokens that the draft model does not have."""

    is_path_free = is_row_free = is_order_free = True
    can_remove_all, ignores_padding = True, False

    def __call__(self, ids, logits, row):
        return logits.float().masked_fill(torch.tensor(DRAFT_IDS) >= 0, -torch.inf)


def test_processors_that_forbid_all_shared_tokens_leave_a_distribution():
    drafter = DraftModel(ToyScorer(TableLM(W)), vocabulary=intersection())
    batch = Loop(drafter, PROMPTS, KAry((2, 2)), processors=OnlyNotShared(), vocab_size=V).propose()
    assert batch.draft_probs is not None
    assert batch.draft_probs[0].tolist() == pytest.approx([0.2 if own >= 0 else 0.0 for own in DRAFT_IDS])


def test_padded_heads_of_one_tokenizer():
    """The longer head's last logits belong to no token: the distribution is the one of the shared size."""
    for num_target, num_draft in ((6, 9), (9, 6)):
        model = TableLM(num_draft)
        drafter = DraftModel(ToyScorer(model), vocabulary=SharedVocabulary.of_one_tokenizer(num_draft))
        loop = Loop(drafter, [[1, 2, 5], [4]], KAry((2, 1), IID), vocab_size=num_target)
        for _ in range(6):
            batch = loop.propose()
            for row, tree in enumerate(batch.trees):
                text = tuple(loop.history.tokens(row).tolist())
                probs = model.logits(tuple(t for t in text if t < num_draft))[:6].softmax(-1)
                padded = torch.nn.functional.pad(probs, (0, num_target - 6))
                torch.testing.assert_close(tree.draft_probs_of(1), padded, atol=1e-6, rtol=0)
            loop.step(batch)


def test_other_sizes_need_a_word():
    with pytest.raises(VocabularyMismatchError, match=r"6 tokens and the target's 7.*is_same_tokenizer=True"):
        Loop(DraftModel(ToyScorer(TableLM(6))), [[1]], Chain(2), vocab_size=7)
    for draft_ids in ([-1, 6, 9], [-1] * 7 + [0]):  # Beyond the draft model's six logits, or the target's seven.
        vocabulary = SharedVocabulary(torch.tensor(draft_ids))
        with pytest.raises(VocabularyMismatchError, match=r"6 logits and the target's 7"):
            Loop(DraftModel(ToyScorer(TableLM(6)), vocabulary=vocabulary), [[1]], Chain(2), vocab_size=7)
    with pytest.raises(ConfigError, match="share no token"):
        SharedVocabulary(torch.tensor([-1, -1]))


@pytest.mark.filterwarnings("ignore:the draft model cannot run trees")
def test_models_without_trees_keep_up():
    """Rows whose texts grow by different numbers of draft tokens; the scorer refuses ragged chains."""
    drafter = DraftModel(ToyScorer(TableLM(W), Capability.CHAIN), vocabulary=intersection())
    loop = Loop(drafter, PROMPTS, Chain(3), vocab_size=V)
    for step in range(12):
        loop.step(loop.propose())
        if step == 5:
            loop.keep_rows([1, 2])


# A model whose eight tokens are the target's, of which the draft has six under other ids and two not at all.
OWN = ToyCodec(["a", "b", "c", "d", "e", "f", "ab", "cd"])
OTHER = ToyCodec(["f", "x", "d", "b", "y", "a", "c", "e"])


COLD = PLAIN | {"temperature": 0.6, "top_p": 1.0, "repetition_penalty": 1.0}


@pytest.mark.parametrize(
    ("rule", "options"),
    [("traversal", WARPED), pytest.param("recursive", COLD, marks=pytest.mark.slow)],
    ids=["traversal-warped", "recursive-cold"],
)
def test_sampled_distribution_is_the_targets(rule, options):
    """G-tests of three tokens' joint distribution through the whole engine, see `benchmarks.joint_distribution`."""
    ids = shared_tokens(OWN, OTHER)
    vocabulary = SharedVocabulary(ids, Translator(OWN, OTHER, ids))

    def drafter(models):
        return DraftModel(make_scorer(models.draft), vocabulary=vocabulary)

    case = Case(rule, KAry((2, 2), WITHOUT_REPLACEMENT), "intersection", options, drafter)
    assert run_case(case, tiny_models(), num_batches=1, num_rows=1000)["p"] > 1e-4


def test_re_encoded_trees_are_sampled_right_too():
    def drafter(models):
        return ReEncoding(make_scorer(models.draft), OTHER, OWN)

    case = Case("target_walk", BestFirst(6), "re-encoding", PLAIN, drafter)
    assert run_case(case, tiny_models(), num_batches=1, num_rows=1000)["p"] > 1e-4


def test_the_path_that_spells_the_most():
    tree = TokenTree.from_paths(
        [(0,), (1,), (0, 0), (0, 0, 0), (1, 0)], [5, 3, 6, 2, 1, 5]
    )  # a, abc, a b, a b c, abc d
    assert longest_path(tree, DRAFT, b"abcd") == (0, 2, 5)
    assert longest_path(tree, DRAFT, b"abca") == (0, 2), "of equal ones the first"
    assert longest_path(tree, DRAFT, b"ab") == (0, 1, 3)
    assert longest_path(tree, DRAFT, b"d") == (0,)


def test_the_most_valuable_paths_make_a_tree():
    values = {(1,): 0.9, (1, 2): 0.9, (3,): 0.5, (1, 2, 4): 0.1, (3, 1): 0.2}
    tree = tree_of_paths(7, values, num_nodes=5)
    assert tree.tokens == [7, 1, 2, 3, 1]
    assert tree.parents == [-1, 0, 1, 0, 3]
    assert tree.values == [1.0, 0.9, 0.9, 0.5, 0.2]


class Reciter:
    """Recites one text, for ever, as its tokenizer cuts it; the rest of the distribution lies on one wrong token."""

    def __init__(self, codec, text, scale=3.0):
        self.codec, self.text, self.scale, self.vocab_size = codec, text * 20, scale, len(codec.pieces)
        self._next, end = {}, 0
        for token in codec.encode(self.text):
            self._next[end] = token
            end += len(codec.pieces[token])

    def logits(self, tokens):
        done = len(spell(self.codec, [t for t in tokens if isinstance(self.codec.pieces[t], bytes)]))
        token = self._next.get(done)
        token = self.codec.encode(self.text[done : done + 9])[0] if token is None else token
        logits = torch.zeros(self.vocab_size)
        logits[token] = self.scale
        logits[(token + 1) % self.vocab_size] = self.scale - 1
        return logits


@pytest.mark.parametrize(
    "policy", [Chain(6), BestFirst(12, depth=6), Paths([(0,), (1,), (0, 0), (0, 0, 0), (0, 0, 0, 0)])]
)
def test_re_encoding_recites_what_the_target_recites(policy):
    """Both know the text and cut it differently: most paths are accepted as a whole."""
    text = b"abcdcabbcaddabca"
    target, scorer = Reciter(TARGET, text), ToyScorer(Reciter(DRAFT, text))
    drafter = ReEncoding(scorer, DRAFT, TARGET, lookback=4)
    loop = Loop(drafter, [[0, 4, 3], [4], [0, 1]], policy, is_sampling=False, vocab_size=V)
    num_emitted = num_steps = 0
    for step in range(12):
        if step == 8:
            loop.keep_rows([2, 0])
        batch = loop.propose()
        assert batch.sampling_schemes <= {SELECTED}
        assert batch.max_nodes <= policy.max_nodes
        emitted = []
        for row, tree in enumerate(batch.trees):
            tokens, node = [], 0
            while True:
                text = [*loop.history.tokens(row).tolist(), *tokens]
                tokens.append(int(target.logits(text).argmax()))
                node = next((i for i in tree.children(node) if tree.token(i) == tokens[-1]), None)
                if node is None:
                    break
            emitted.append(tokens)
            num_emitted, num_steps = num_emitted + len(tokens), num_steps + 1
        loop.step(batch, emit=emitted)
    assert num_emitted / num_steps > 3.5, "chains of four and more draft tokens hold about as many of the target's"
    assert scorer.num_prefills == 1


def test_a_drafted_end_is_the_targets_end():
    class Ender(Reciter):
        def logits(self, tokens):
            return torch.nn.functional.one_hot(torch.tensor(0), self.vocab_size).float() * 9

    loop = Loop(ReEncoding(ToyScorer(Ender(DRAFT, b"abc")), DRAFT, TARGET), [[0, 4, 3]], Chain(2), vocab_size=V)
    assert loop.propose().tokens[0].tolist() == [3, 6]
