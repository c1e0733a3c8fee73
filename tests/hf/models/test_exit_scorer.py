"""Early exit: the target's own output, each node through each layer once, and clear words where it cannot be done."""

from dataclasses import replace

import pytest
import torch
from helpers import zoo
from helpers.doc_snippets import run_snippet
from helpers.rounds import cache_error
from helpers.tiny import padded, prompt, tiny_llama

import treespec
from benchmarks.joint_distribution.cases import PLAIN, VOCAB_SIZE, WARPED, Case, Models, kary
from benchmarks.joint_distribution.run import run_case
from treespec import TreeSpeculation
from treespec.drafters import EarlyExit
from treespec.engine.loop import speculate
from treespec.engine.request import Request
from treespec.errors import ConfigError, UnsupportedModelError
from treespec.hf import TreeScorer, make_exit_scorer, make_scorer
from treespec.hf.generation.stopping import TreeStopping
from treespec.hf.introspect import CACHE_NAME, cache_in
from treespec.hf.models.exit_scorer import ExitScorer
from treespec.hf.models.layers import decoder_layers
from treespec.policies import BestFirst, Chain, KAry, SpecExec
from treespec.protocols import Capability

GREEDY = {"max_new_tokens": 16, "do_sample": False}
SHARE_KEYS = ("gemma3n_text", "gemma4_text")
"""Their late layers read the keys of earlier ones."""
TREE_MODELS = [str(architecture) for architecture in zoo.ARCHITECTURES if architecture.capability == Capability.TREE]
SPLIT = [name for name in TREE_MODELS if name not in SHARE_KEYS]


@pytest.fixture(scope="module")
def deep():
    return tiny_llama(num_layers=5, seed=1)


@pytest.fixture(scope="module")
def two_layers():
    model = tiny_llama(VOCAB_SIZE, hidden_size=16, intermediate_size=32)
    return Models(model, model)


slow = pytest.mark.slow


@pytest.fixture(scope="module")
def ragged():
    return padded(prompt(3, 12), [0, 4, 11])


@pytest.mark.parametrize("name", [n if i % 8 == 0 else pytest.param(n, marks=slow) for i, n in enumerate(SPLIT)])
def test_greedy_equals_plain_on_many_architectures(name):
    model = zoo.build(zoo.BY_NAME[name])
    inputs = padded(zoo.prompts(2, 12), [0, 3]) | {"max_new_tokens": 10, "do_sample": False}
    speculation = TreeSpeculation(EarlyExit(1), tree=KAry((2, 2, 1)))
    assert torch.equal(model.generate(**inputs, custom_generate=speculation), model.generate(**inputs))
    assert speculation.stats.num_draft_tokens > 0


@pytest.mark.parametrize(
    ("exit_layer", "tree", "is_penalised"),
    [(1, Chain(4), False), (4, Chain(4), True), (4, 10, False), (1, [(0,), (1,), (0, 0), (0, 1)], True),
     (1, SpecExec(10, beam=3, num_passes=4), False), (4, SpecExec(10, beam=3, num_passes=4), True)],
)  # fmt: skip
def test_greedy_equals_plain_in_a_ragged_batch(deep, ragged, exit_layer, tree, is_penalised):
    options = GREEDY | ({"repetition_penalty": 1.5} if is_penalised else {})
    speculation = TreeSpeculation(EarlyExit(exit_layer), tree=tree)
    out = deep.generate(**ragged, **options, custom_generate=speculation)
    assert torch.equal(out, deep.generate(**ragged, **options))
    assert speculation.stats.num_accepted_tokens > 0


def test_rows_that_end_early_leave(deep, ragged):
    plain = deep.generate(**ragged, **GREEDY)
    eos = int(plain[0, 15])
    speculation = TreeSpeculation(EarlyExit(2), tree=8)
    out = deep.generate(**ragged, **GREEDY, eos_token_id=eos, custom_generate=speculation)
    assert torch.equal(out, deep.generate(**ragged, **GREEDY, eos_token_id=eos))


@pytest.mark.parametrize("exit_layer", [1, 3])
def test_tree_logits_and_cache_are_those_of_the_whole_model(deep, exit_layer):
    """Random trees, in part drafted in random pieces, then committed to random paths."""
    random = torch.Generator().manual_seed(exit_layer)
    split, whole = ExitScorer(deep, exit_layer, hidden_layers=(-1,)), TreeScorer(deep, hidden_layers=(-1,))
    ids, mask = prompt(2, 9), torch.ones(2, 9, dtype=torch.bool)
    mask[1, :3] = False
    states = [scorer.prefill(ids, mask)[-1] for scorer in (split, whole)]
    torch.testing.assert_close(*states)
    texts = [ids[0], ids[1, 3:]]
    for _ in range(5):
        tokens = torch.randint(1, 64, (2, 9), generator=random)
        parents = torch.tensor([[int(torch.randint(-1 if n == 0 else 0, max(n, 1), (), generator=random)) if n else -1
                                 for n in range(9)] for _ in range(2)])  # fmt: skip
        num_drafted = int(torch.randint(0, 9, (), generator=random))
        for first in range(0, num_drafted, 3):
            columns = slice(first, min(first + 3, num_drafted))
            split.draft(tokens[:, columns], parents[:, columns])
        # The tree need not stand in the order in which it was drafted.
        scores = [scorer.extend(tokens, parents) for scorer in (split, whole)]
        torch.testing.assert_close(scores[0].logits, scores[1].logits, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(scores[0].hidden_states[-1], scores[1].hidden_states[-1], atol=1e-4, rtol=1e-4)
        paths = [path_to(parents[row].tolist(), int(torch.randint(0, 9, (), generator=random))) for row in range(2)]
        for scorer in (split, whole):
            scorer.commit(paths)
        texts = [torch.cat([text, tokens[row, paths[row]]]) for row, text in enumerate(texts)]
    split.select_rows([1])
    slots = split._late._state.slots.mask
    assert torch.equal(split._early._state.slots.mask, slots)
    assert cache_error(deep, split.cache, slots, texts[1:]) < 1e-4


def path_to(parents, node):
    path = []
    while node >= 0:
        path.insert(0, node)
        node = parents[node]
    return path


@pytest.mark.parametrize("tree", [Chain(3), KAry((2, 2, 1)), BestFirst(9, depth=3, branching=3)])
def test_no_layer_sees_a_node_twice(deep, tree):
    """Counted by hooks: a tree's nodes pass every layer once; nodes that the policy dropped, the early ones alone."""
    counts = [0] * 5
    handles = [
        layer.self_attn.register_forward_pre_hook(
            lambda _, args, kwargs, i=i: counts.__setitem__(i, counts[i] + kwargs["hidden_states"].shape[1]),
            with_kwargs=True,
        )
        for i, layer in enumerate(decoder_layers(deep))
    ]
    drafted = 0

    class Counting(EarlyExit):
        def expand(self, frontier):
            nonlocal drafted
            drafted += frontier.tokens.shape[1]
            return super().expand(frontier)

    speculation = TreeSpeculation(Counting(2), tree=tree, record_steps=True)
    ids = prompt(1, 12)
    make_exit_scorer(deep, 2)  # The self-check's own passes come before the count.
    counts[:] = [0] * 5
    deep.generate(ids, **GREEDY, custom_generate=speculation)
    for handle in handles:
        handle.remove()
    trees = [step.trees[0] for step in speculation.steps]
    num_nodes = 11 + sum(t.num_nodes for t in trees)
    assert counts[2:] == [num_nodes] * 3
    if not isinstance(tree, BestFirst):  # Its rerank drops some nodes that were drafted from.
        num_leaves = sum(t.num_nodes - len(set(t.parent_list[1:])) for t in trees)
        assert counts[:2] == [11 + drafted + num_leaves] * 2
        assert counts[0] == num_nodes
    assert counts[0] <= num_nodes + drafted


@pytest.mark.parametrize("options", [pytest.param(PLAIN, marks=slow), WARPED], ids=["plain", "warped"])
@pytest.mark.parametrize("children", ["iid", "without_replacement"])
def test_joint_distribution_is_the_targets(two_layers, options, children):
    case = Case("traversal", kary(children), children, options, drafter=lambda _: EarlyExit(1))
    result = run_case(case, two_layers, num_batches=1, num_rows=1000)
    assert result["p"] > 1e-4
    assert result["block_efficiency"] > 1.1


def test_another_stored_distribution_would_be_found(two_layers):
    class Flatter(EarlyExit):
        def propose(self, max_depth):
            trees = super().propose(max_depth)
            return (
                trees if trees.draft_probs is None else replace(trees, draft_probs=trees.draft_probs.sqrt().softmax(-1))
            )

    case = Case(
        "traversal", kary("iid"), "iid", PLAIN, drafter=lambda _: Flatter(1), bug="another distribution is stored"
    )
    assert run_case(case, two_layers, num_batches=1, num_rows=2000)["p"] < 1e-6


def test_it_can_be_merged(deep, ragged):
    speculation = TreeSpeculation([EarlyExit(3), treespec.SuffixLookup(), treespec.TokenRecycling()], tree=10)
    assert torch.equal(
        deep.generate(**ragged, **GREEDY, custom_generate=speculation), deep.generate(**ragged, **GREEDY)
    )
    assert speculation.stats.num_accepted_tokens > 0
    with pytest.raises(ConfigError, match="one target has one early exit"):
        deep.generate(**ragged, **GREEDY, custom_generate=TreeSpeculation([EarlyExit(3), EarlyExit(2)]))


def test_same_seed_same_output(deep):
    options = {"do_sample": True, "max_new_tokens": 20}
    outs = [
        deep.generate(prompt(2, 8), **options, custom_generate=TreeSpeculation(EarlyExit(3), tree=8, seed=5))
        for _ in range(2)
    ]
    assert torch.equal(*outs)


@pytest.mark.parametrize("name", ["gpt2", "opt"])
def test_full_context(name):
    model = zoo.build(zoo.BY_NAME[name])
    options = padded(zoo.prompts(2, 245), [0, 9]) | {"max_length": 256, "do_sample": False}
    out = model.generate(**options, custom_generate=TreeSpeculation(EarlyExit(1), tree=Chain(6)))
    assert torch.equal(out, model.generate(**options))


def test_prompts_of_one_token_and_caches_go_on(deep):
    speculation = TreeSpeculation(EarlyExit(2), tree=8)
    ids = prompt(1, 1)
    first = deep.generate(ids, **GREEDY, custom_generate=speculation, return_dict_in_generate=True)
    more = {"max_new_tokens": 12, "do_sample": False}
    plain = deep.generate(ids, max_new_tokens=28, do_sample=False)
    assert torch.equal(first.sequences, plain[:, :17])
    out = deep.generate(first.sequences, **{CACHE_NAME: cache_in(first)}, **more, custom_generate=speculation)
    assert torch.equal(out, plain)


def test_an_error_leaves_model_and_cache_as_they_were(deep):
    class Failing(EarlyExit):
        def expand(self, frontier):
            if not frontier.is_root:
                raise KeyboardInterrupt
            return super().expand(frontier)

    cache = treespec.new_cache(5)
    speculation = TreeSpeculation(Failing(2), tree=8)
    with pytest.raises(KeyboardInterrupt):
        deep.generate(prompt(1, 8), **{CACHE_NAME: cache}, **GREEDY, custom_generate=speculation)
    assert not [layer for layer in decoder_layers(deep) if "forward" in vars(layer)]
    ids = prompt(1, 8)
    with torch.no_grad():
        deep(input_ids=ids[:, :-1], **{CACHE_NAME: cache})
    with pytest.raises(KeyboardInterrupt):
        deep.generate(ids, **{CACHE_NAME: cache}, **GREEDY, custom_generate=speculation)
    assert [layer.get_seq_length() for layer in cache.layers] == [7] * 5
    assert torch.equal(deep.generate(ids, **{CACHE_NAME: cache}, **GREEDY), deep.generate(ids, **GREEDY))


@pytest.mark.filterwarnings("ignore")  # Said once per model, here or in another test.
@pytest.mark.parametrize("name", ["mamba2", "lfm2"])
def test_models_without_trees_are_refused(name):
    with pytest.raises(UnsupportedModelError, match="verifies no trees"):
        zoo.build(zoo.BY_NAME[name]).generate(
            zoo.prompts(1, 8), **GREEDY, custom_generate=TreeSpeculation(EarlyExit(1), tree=4)
        )


@pytest.mark.parametrize("name", SHARE_KEYS)
def test_models_whose_layers_share_keys_are_refused(name):
    with pytest.raises(UnsupportedModelError, match="cannot leave out layers"):
        make_exit_scorer(zoo.build(zoo.BY_NAME[name]), 1)


def test_wrong_use_is_named(deep):
    ids = prompt(1, 8)
    for count, error in ((5, "needs 1 to 4 of them, got 5"), (7, "got 7")):
        with pytest.raises(ConfigError, match=error):
            deep.generate(ids, **GREEDY, custom_generate=TreeSpeculation(EarlyExit(count)))
    for count in (0, True, 2.0):
        with pytest.raises(ConfigError, match="num_layers must be a positive int"):
            EarlyExit(count)
    with pytest.raises(UnsupportedModelError, match="growing cache"):
        deep.generate(ids, **GREEDY, cache_implementation="static", custom_generate=TreeSpeculation(EarlyExit(2)))
    with pytest.raises(ConfigError, match=r"hidden states \[1\] lie before"):
        make_exit_scorer(deep, 3, hidden_layers=(1, 4, -1))
    request = Request(ids, torch.ones_like(ids, dtype=torch.bool), TreeStopping([], 1, None), BestFirst(4))
    with pytest.raises(ConfigError, match=r"make_exit_scorer\(model, 2\)"):
        speculate(make_scorer(deep), EarlyExit(2), request)


def test_the_snippet_of_the_docs_runs():
    names = run_snippet("Early exit")
    assert names["speculation"].stats.mean_acceptance_length > 1
