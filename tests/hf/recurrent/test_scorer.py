"""Models with states through the whole engine: identity with plain `generate`, states after commits, fallbacks."""

import threading
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from helpers.rounds import Game, prefilled
from helpers.tiny import identical, lookups
from helpers.zoo import BY_NAME, RWKV, STATEFUL, VOCAB_SIZE, Architecture, build, prompts
from transformers import DynamicCache, PreTrainedModel

import treespec
from treespec.drafters import TokenRecycling
from treespec.errors import TreespecWarning, UnsupportedModelError
from treespec.hf import make_scorer
from treespec.hf.introspect import CACHE_NAME, model_facts
from treespec.hf.models.recurrent_scorer import RecurrentScorer
from treespec.hf.recurrent import operators
from treespec.hf.recurrent.scorer import StateScorer, own_states
from treespec.lab.selftest.drafters import Planted
from treespec.protocols import Capability
from treespec.testing import (
    WITHOUT_REPLACEMENT,
    FixedShape,
    RandomDistributions,
    ToyDrafter,
    enumerate_continuations,
    exact_distribution,
    uncached,
)
from treespec.verification import Traversal

TOLERANCE = 1e-4
KINDS = ("lfm2", "qwen3_5_text", "kimi_linear", "bamba", "jamba", "minimax", "recurrent_gemma")
"""One architecture of each kind: convolutions alone, delta rules with decays per head and channel, Mamba-2 and 1,
lightning attention, RG-LRU."""
OPTIONS = {"do_sample": False, "pad_token_id": 0, "eos_token_id": VOCAB_SIZE + 1}


def filled(model: PreTrainedModel, num_rows: int = 1, length: int = 20) -> StateScorer:
    return prefilled(StateScorer(model), prompts(num_rows, 20)[:, :length])


def with_embedded_padding(model):
    """A model whose embedding of padding is not 0."""
    weight: Any = model.get_input_embeddings().weight
    with torch.no_grad():
        weight[0] = weight[5:9].sum(0)
    return model


@pytest.mark.parametrize("name", KINDS)
def test_a_single_column_of_padding_leaves_states_alone(name):
    """Which models mask in passes over several tokens alone; RecurrentGemma's blocks mask none, plainly neither."""
    model = with_embedded_padding(build(name))
    if name != "recurrent_gemma":
        assert Game(model, StateScorer(model), [1, 0, 1]).play(1) <= TOLERANCE
        return
    speculation = treespec.TreeSpeculation(TokenRecycling(), tree=8)
    for ids, mask in (([[0, 5]], [[0, 1]]), ([[0, 5], [4, 9]], [[0, 1], [1, 1]])):
        check_identity(model, torch.tensor(ids), torch.tensor(mask), 20, speculation)


@pytest.mark.parametrize("name", ["qwen3_5_text", "bamba", "recurrent_gemma"])
def test_hidden_states_are_those_of_plain_passes(name):
    """Draft heads read them, also those of a padded prompt."""
    model, ids, tokens = build(name), prompts(2, 20), prompts(2, 3, seed=1)
    mask = torch.arange(20) >= torch.tensor([[0], [6]])
    scorer = StateScorer(model, hidden_layers=(1, -1))
    prefilled = scorer.prefill(ids.masked_fill(~mask, 0), mask).hidden_states
    extended = scorer.extend(tokens, torch.tensor([[-1, 0, 0], [-1, 0, 1]])).hidden_states
    texts = [[0, 1], [0, 2]], [[0, 1, 2]]
    for row, (start, paths) in enumerate(zip([0, 6], texts, strict=True)):
        for path in paths:
            text = torch.cat([ids[row, start:], tokens[row, path]])[None]
            with torch.no_grad():
                states = model(input_ids=text, use_cache=False, output_hidden_states=True).hidden_states
            for layer in (1, -1):
                assert (prefilled[layer][row, start:] - states[layer][0, : 20 - start]).abs().max() <= TOLERANCE
                assert (extended[layer][row, path] - states[layer][0, 20 - start :]).abs().max() <= TOLERANCE


def test_a_batch_of_four_shares_its_passes(monkeypatch):
    """As many passes as the row that needs most has steps, not the sum over rows; rejected nodes cost none."""
    model, ids, run, sizes = build("qwen3_5_text"), prompts(4, 20), StateScorer._run, []
    check_identity(model, ids, torch.ones_like(ids), 24, lookups())  # With the checks of a first use.

    def counted(*args, **options):
        scores = run(*args, **options)
        sizes.append(len(scores.logits))
        return scores

    monkeypatch.setattr(StateScorer, "_run", counted)
    stats = check_identity(model, ids, torch.ones_like(ids), 24, lookups())
    assert sizes[0] == sizes[1] == 4
    assert len(sizes) == 1 + stats.num_target_passes <= 1 + 24


def test_rwkv_decodes_single_texts():
    """transformers' own batches mix rows up: here each row is what it is alone; padding is refused."""
    model, ids = build("rwkv"), prompts(3, 20)
    game = Game(model, make_scorer(model), [26, 26, 26])
    assert game.play(3, num_passes=2) <= TOLERANCE
    game.select_rows([2, 0])
    assert game.play(2) <= TOLERANCE
    alone = [plain_texts(model, row[None], 24)[0] for row in ids]
    speculation = treespec.TreeSpeculation(Planted(alone, VOCAB_SIZE, 4), tree=16)
    out = model.generate(ids, max_new_tokens=24, **OPTIONS, custom_generate=speculation)
    assert out[:, 20:].tolist() == alone
    assert any(rank > 0 for rank in speculation.stats.num_accepted_at_rank)
    mask = (torch.arange(20) >= torch.tensor([[0], [3], [0]])).long()
    with pytest.raises(UnsupportedModelError, match="give its prompts one by one"):
        model.generate(ids, attention_mask=mask, max_new_tokens=4, **OPTIONS, custom_generate=speculation)


def test_other_dtypes_are_served_by_trees():
    """transformers keeps RWKV's states in float32 in float64 too."""
    model, ids = build("rwkv").double(), prompts(1, 20)
    check_identity(model, ids, torch.ones_like(ids), 12, lookups())
    assert make_scorer(build("qwen3_5_text").to(torch.bfloat16)).capability == Capability.TREE


def test_states_of_modules_stay_those_of_plain_passes():
    """RecurrentGemma's: a plain text can go on where it was after a call with trees."""
    model, ids = build("recurrent_gemma"), prompts(1, 20)
    model(ids[:, :19])
    blocks = [layer.temporal_block for layer in model.model.layers[:2]]
    kept = [[block.conv1d_state.clone(), block.rg_lru.recurrent_states.clone()] for block in blocks]
    scorer = filled(model)
    scorer.extend(prompts(1, 3, seed=1), torch.tensor([[-1, 0, 0]]))
    scorer.commit([(0, 2)])
    for block, states in zip(blocks, kept, strict=True):
        assert torch.equal(block.conv1d_state, states[0])
        assert torch.equal(block.rg_lru.recurrent_states, states[1])


def plain_texts(model, ids, num_new, mask=None):
    mask = torch.ones_like(ids) if mask is None else mask
    out = model.generate(ids, attention_mask=mask.long(), max_new_tokens=num_new, **OPTIONS)
    return out[:, ids.shape[1] :].tolist()


def check_identity(model, ids, mask, num_new, speculation):
    inputs = {"input_ids": ids, "attention_mask": mask.long()}
    return identical(model, inputs, speculation, max_new_tokens=num_new, **OPTIONS)


@pytest.mark.parametrize("name", ["zamba2", "nemotron_h"])
def test_limits_of_step_sizes_are_those_of_plain_decoding(name):
    """Prompts have them, single steps have not."""
    model = build(replace(BY_NAME[name], options={**BY_NAME[name].options, "time_step_min": 0.01}))
    ids = prompts(2, 20)
    plain = plain_texts(model, ids, 16)
    scores = model.generate(ids, max_new_tokens=3, **OPTIONS, return_dict_in_generate=True, output_logits=True)
    scorer, expected, tokens = StateScorer(model), torch.stack(scores.logits, 1), scores.sequences[:, 20:22]
    first = scorer.prefill(ids, torch.ones_like(ids, dtype=torch.bool)).logits
    assert (first - expected[:, :1]).abs().max() <= TOLERANCE
    for parts in ([slice(0, 2)], [slice(0, 1), slice(1, 2)]):
        parents = torch.tensor([[-1, 0]] * 2)
        logits = torch.cat([scorer.extend(tokens[:, part], parents[:, part]).logits for part in parts], 1)
        assert (logits - expected[:, 1:]).abs().max() <= TOLERANCE
        scorer.commit([(), ()])
    speculation = treespec.TreeSpeculation(Planted(plain, VOCAB_SIZE, 2), tree=16)
    check_identity(model, ids, torch.ones_like(ids), 16, speculation)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", [*STATEFUL, RWKV], ids=str)
def test_logits_of_trees_are_those_of_paths(architecture: Architecture):
    """Large trees in every row, behind texts and committed paths, with padding but for RWKV."""
    model = build(architecture)
    game = Game(model, make_scorer(model), [26] * 3 if architecture is RWKV else [26, 21, 14], seed=48)
    assert game.play(4, max_nodes=48, num_passes=1) <= TOLERANCE
    assert game.cache_error() <= TOLERANCE


@pytest.mark.parametrize("name", KINDS)
@torch.no_grad()
def test_rounding_is_that_of_the_models_own_passes(name):
    """In bfloat16, token by token or in chunks; the yardstick is one plain pass in float32."""
    model, ids, tokens = build(name), prompts(1, 20), prompts(1, 24, seed=1)
    whole = torch.cat([ids, tokens], 1)
    expected = model(input_ids=whole, use_cache=False).logits[0, 20:]
    model = model.to(torch.bfloat16)
    plain = [model(input_ids=whole, use_cache=False).logits[0, 20:]]
    if own_states(model_facts(model)) is None:
        scorer = prefilled(RecurrentScorer(model, capability=Capability.PLAIN), ids)
        parents = [torch.tensor([[number - 1]]) for number in range(24)]
        parts = [scorer.extend(*part).logits for part in zip(tokens.split(1, 1), parents, strict=True)]
        plain.append(torch.cat(parts, 1)[0])
    tree = filled(model).extend(tokens, torch.arange(-1, 23)[None]).logits[0]
    assert (tree - expected).abs().max() <= 2 * max((part - expected).abs().max() for part in plain) + 1e-5


@pytest.mark.parametrize("name", ["qwen3_5_text", "recurrent_gemma", "rwkv"])
@torch.no_grad()
def test_joint_distribution_is_the_targets_by_enumeration(name):
    """All drafts and all coins: trees of samples without replacement, behind a committed path. A rule sees nothing of
    the model but these distributions: the others are in verification/test_exact_distribution.py."""
    model, kept = build(name), [10, 11, 12]
    scorer, tokens = filled(model), torch.tensor([[20, 21, 22]])
    scorer.extend(tokens, torch.tensor([[-1, 0, 0]]))
    scorer.commit([(0, 2)])
    contexts = [(), *product(range(3)), *product(range(3), repeat=2)]
    columns = torch.tensor([[5, *(kept[context[-1]] for context in contexts[1:])]])
    parents = torch.tensor([[-1, *(contexts.index(context[:-1]) for context in contexts[1:])]])
    probs = scorer.extend(columns, parents).logits[0, :, kept].double().softmax(-1).numpy()

    def target(context):
        return probs[contexts.index(context)]

    drafter = ToyDrafter(WITHOUT_REPLACEMENT, FixedShape.kary(2, 1), (RandomDistributions(3, 2),))
    found = exact_distribution(Traversal(), drafter, target).probs
    text = torch.cat([prompts(1, 20), tokens[:, [0, 2]], columns[:, :1]], 1)[0]
    for context, prob in enumerate_continuations(uncached(model, text, only(kept)), 3).joint.items():
        assert found[tuple(map(kept.index, context))] == pytest.approx(prob, abs=1e-5)


def only(kept):
    return lambda _, scores: torch.full_like(scores, -torch.inf).index_copy(1, torch.tensor(kept), scores[:, kept])


@pytest.mark.parametrize("name", ["qwen3_5_text", "bamba", "recurrent_gemma", "rwkv"])
def test_passes_of_a_thread_within_each_of_another_threads(name):
    """Plain ones, too: the functions of a modelling file are other ones for the thread of the tree pass alone."""
    model, owner, found = build(name), threading.get_ident(), []

    def score():
        scorer, parts = filled(model), []
        for tokens, parents in ((prompts(1, 3, seed=1), [[-1, 0, 0]]), (prompts(1, 1, seed=2), [[-1]])):
            parts.append(scorer.extend(tokens, torch.tensor(parents)).logits)
            scorer.commit([(0,)])
        with torch.no_grad():
            found.append(torch.cat([*parts, model(prompts(1, 20), use_cache=False).logits], 1))

    def begin(*_):
        if threading.get_ident() == owner:
            thread = threading.Thread(target=score)
            thread.start()
            thread.join()

    score()
    handle = model.get_output_embeddings().register_forward_pre_hook(begin)
    score()
    handle.remove()
    assert len(found) == 2 + 4
    assert all(torch.equal(logits, found[0]) for logits in found)


@pytest.mark.parametrize("name", ["qwen3_next", "minimax", "recurrent_gemma", "rwkv"])
def test_plain_generate_continues_from_what_is_returned(name):
    """None where the states are not in the cache: the keys alone would be continued wrongly."""
    model, ids = build(name), prompts(1, 20)
    plain = model.generate(ids, max_new_tokens=16, **OPTIONS)
    out = model.generate(ids, max_new_tokens=8, **OPTIONS, return_dict_in_generate=True, custom_generate=lookups())
    assert (out.past_key_values is None) == (name in ("recurrent_gemma", "rwkv"))
    model.generate(prompts(1, 12, seed=5), max_new_tokens=2, **OPTIONS)
    given = {"attention_mask": torch.ones_like(out.sequences), CACHE_NAME: out.past_key_values}
    assert torch.equal(model.generate(out.sequences, **given, max_new_tokens=8, **OPTIONS), plain)


def test_a_given_cache_stays_empty_where_states_are_kept_elsewhere():
    model, ids, cache = build("recurrent_gemma"), prompts(1, 20), DynamicCache()
    check_identity(model, ids, torch.ones_like(ids), 10, lookups())
    model.generate(ids, max_new_tokens=10, **OPTIONS, **{CACHE_NAME: cache}, custom_generate=lookups())
    assert cache.get_seq_length() == 0


def test_unknown_recurrences_decode_by_snapshots(monkeypatch):
    monkeypatch.delitem(operators._RECURRENCES, "mamba2_chunk_scan")
    model = build("bamba")
    with pytest.raises(UnsupportedModelError, match="BambaMixer has no form for trees"):
        StateScorer(model)
    with pytest.warns(TreespecWarning, match="by chains because .* BambaMixer"):
        assert isinstance(make_scorer(model), RecurrentScorer)
