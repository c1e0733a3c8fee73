"""Every architecture of the zoo: trees score as their paths, caches stay whole, greedy decoding equals `generate`."""

import warnings

import pytest
import torch
from helpers.rounds import Game, tree_logits
from helpers.zoo import ARCHITECTURES, MIN_LOGIT_STD, STATEFUL, VOCAB_SIZE, WINDOW, Architecture, build, prompts
from transformers import PreTrainedModel

import treespec
from treespec.errors import TreespecWarning
from treespec.hf import TreeScorer, make_scorer
from treespec.hf.models.capability import keeps_states
from treespec.lab.selftest.drafters import Planted
from treespec.protocols import Capability
from treespec.tree import TokenTree

TOLERANCE = 1e-4
OF_STATES = 4e-4
"""Where layers keep states: chunks and single steps of a tiny Qwen3.5 with experts differ by up to 1.8e-4."""
PROMPT_LENGTH = 36
PADDING = (0, 5, 12)
NUM_NEW = 10

NOT_TREES = [architecture for architecture in ARCHITECTURES if architecture.capability != Capability.TREE]


@pytest.fixture(scope="module", params=ARCHITECTURES, ids=str)
def built(request) -> tuple[Architecture, PreTrainedModel]:
    """An architecture and its model, one for all tests of it, which run one after the other."""
    return request.param, build(request.param)


def test_tree_logits_equal_path_logits_and_caches_stay_whole(built):
    """Rounds of tree, ragged commit, tree, in a left-padded batch that loses a row; where states are kept, of single
    nodes too, which are the model's own steps."""
    architecture, model = built
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TreespecWarning)
        scorer = make_scorer(model)
    assert scorer.capability == architecture.capability
    if scorer.capability == Capability.TREE:
        assert keeps_states(model) == (architecture in STATEFUL)
    game = Game(model, scorer, [PROMPT_LENGTH - padding for padding in PADDING])
    game.play(2, max_nodes=9)
    game.select_rows([2, 0])
    if keeps_states(model):
        game.play(2, max_nodes=1, num_passes=1)
        game.play(1, is_root_first=True)
    assert game.play(1, num_passes=1) <= (OF_STATES if keeps_states(model) else TOLERANCE)
    assert not isinstance(scorer, TreeScorer) or game.cache_error() <= TOLERANCE


def test_wrong_structure_would_be_noticed(built):
    """The models look back, and have logits wide enough: scoring the tree as a chain gives something else."""
    _, model = built
    ids = prompts(1, PROMPT_LENGTH, seed=1)
    with torch.no_grad():
        assert model(input_ids=ids, use_cache=False).logits.std() >= 1
    tree = TokenTree.from_paths([(0,), (1,), (0, 0), (1, 0)], [5, 9, 23, 40, 40])
    as_tree, as_chain = tree_logits(model, ids.tolist() * 2, [tree, TokenTree.chain(tree.tokens)])
    assert (as_tree - as_chain).abs().amax(1)[2:].min() > 100 * TOLERANCE


def test_greedy_decoding_equals_generate(built):
    """The true continuation is planted at random ranks, so that branches are accepted and not only first children."""
    architecture, model = built
    mask = torch.arange(PROMPT_LENGTH) >= torch.tensor(PADDING).unsqueeze(1)
    ids = prompts(len(PADDING), PROMPT_LENGTH, seed=1).masked_fill(~mask, 0)
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
def test_fallback_is_said_once(architecture: Architecture):
    way = "by chains" if architecture.capability == Capability.CHAIN else "one token at a time"
    with pytest.warns(TreespecWarning, match=f"decodes {way} because it"):
        make_scorer(build(architecture))
    make_scorer(build(architecture))  # warnings are errors here


def test_zoo_is_large():
    assert len({architecture.model_type for architecture in ARCHITECTURES}) >= 55
    assert len({str(architecture) for architecture in ARCHITECTURES}) == len(ARCHITECTURES)
    assert PROMPT_LENGTH - max(PADDING) >= 24 > WINDOW
    assert MIN_LOGIT_STD > 1
