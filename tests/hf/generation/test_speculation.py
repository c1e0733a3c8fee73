"""The public face on tiny real models: the same tokens, stops, scores and streams as plain `generate`."""

from copy import deepcopy
from functools import partial
from itertools import count

import pytest
import torch
from helpers.medusa_files import random_heads
from helpers.tiny import identical, noisy_copy, padded, prompt, tiny_llama
from transformers import BartConfig, BartForCausalLM, DynamicCache, StaticCache, SuppressTokensLogitsProcessor
from transformers.cache_utils import DynamicLayer
from transformers.generation.streamers import BaseStreamer

import treespec
from treespec.errors import UnsupportedModelError
from treespec.heads import Medusa
from treespec.hf.add_ons import AddOn
from treespec.hf.introspect import CACHE_NAME, cache_in
from treespec.hf.loading.as_drafter import as_drafter
from treespec.lab.selftest.drafters import Planted

NUM_NEW = 24
OPTIONS = {"max_new_tokens": NUM_NEW, "do_sample": False}


def padded_batch(num_rows=3, length=14):
    """Left-padded prompts of different lengths, with their mask."""
    return padded(prompt(num_rows, length), [0, 2, 4][:num_rows])


@pytest.mark.parametrize("num_rows", [1, 3])
@pytest.mark.parametrize("tree", [8, [(0,), (1,), (0, 0), (0, 1)]], ids=["int", "paths"])
def test_greedy_equals_plain(target, draft, tree, num_rows):
    speculation = treespec.TreeSpeculation(draft, tree=tree)
    stats = identical(target, padded_batch(num_rows), speculation, **OPTIONS)
    assert stats.num_accepted_tokens > 0
    assert stats.num_emitted_tokens == num_rows * NUM_NEW
    assert stats.num_target_passes < NUM_NEW


PROCESSORS = {
    "repetition": {"repetition_penalty": 1.8, "encoder_repetition_penalty": 1.5},
    "min-length": {"min_new_tokens": 10, "eos_token_id": list(range(1, 20))},
    "prefix": {"prefix_allowed_tokens_fn": lambda row, ids: [3 + row, 9, 10 + len(ids) % 5, 30, 31]},
}
"""In a padded batch; all of them, in pairs, without padding: test_processor_pairs.py."""


@pytest.mark.parametrize("options", PROCESSORS.values(), ids=PROCESSORS.keys())
def test_processors_run_along_every_path(target, draft, options):
    inputs = padded_batch()
    identical(target, inputs, treespec.TreeSpeculation(draft, tree=12), **OPTIONS, **options)
    plain, unprocessed = (target.generate(**inputs, **OPTIONS, **given) for given in (options, {}))
    assert not torch.equal(plain, unprocessed), "the processor must matter"


class StopAfter:
    """A custom criterion on the tokens themselves."""

    def __init__(self, tokens):
        self.tokens = set(tokens)

    def __call__(self, input_ids, scores, **kwargs):
        return torch.tensor([len(self.tokens & set(row[14:].tolist())) >= 2 for row in input_ids])


@pytest.mark.parametrize(("num_rows", "eos"), [(1, None), (3, None), (3, [63])], ids=str)
def test_custom_criteria_are_asked_after_every_token(target, draft, num_rows, eos):
    inputs = padded_batch(num_rows)
    tokens = target.generate(**inputs, **OPTIONS)[:, 14:][:, ::4].flatten().tolist()
    options = {**OPTIONS, "stopping_criteria": [StopAfter(tokens)], "eos_token_id": eos}
    stats = identical(target, inputs, treespec.TreeSpeculation(draft, tree=8), **options)
    assert stats.num_emitted_tokens < num_rows * NUM_NEW


class StopAt:
    """A length per row, by its first token."""

    def __init__(self, lengths):
        self.lengths = lengths

    def __call__(self, input_ids, scores, **kwargs):
        return torch.tensor([len(row) >= self.lengths[int(row[0])] for row in input_ids])


def test_rows_that_wait_for_a_slow_one_end_with_it(target):
    """Without an end token rows go on until all have met a criterion: the fast ones are then too long already."""
    ids = prompt(3, 4)
    firsts = ids[:, 0].tolist()
    texts = target.generate(ids, **OPTIONS)[:, 4:].tolist()
    texts[2] = [(token + 1) % 64 for token in texts[2]]
    options = {**OPTIONS, "stopping_criteria": [StopAt(dict(zip(firsts, [6, 10, 8], strict=True)))]}
    assert target.generate(ids, **options).shape[1] == 10
    identical(target, ids, treespec.TreeSpeculation(Planted(texts, 64, miss_rate=0), tree=8), **options)


def test_a_drafters_arrays_may_be_views(target):
    """Columns of tensors that hold the rows side by side."""

    class Columns(Planted):
        def propose(self, max_depth):
            trees = super().propose(max_depth)
            tokens, parents = (array.T.contiguous().T for array in (trees.tokens, trees.parents))
            assert 1 in tokens.shape or not tokens.is_contiguous()
            return treespec.TreeBatch(tokens, parents)

    ids = prompt(3, 6)
    plain = target.generate(ids, **OPTIONS)
    speculation = treespec.TreeSpeculation(Columns(plain[:, 6:].tolist(), 64), tree=16)
    assert identical(target, ids, speculation, **OPTIONS).num_accepted_tokens > 0


def test_lengths_are_exact(target, draft):
    """After a prompt of one token too."""
    for length, num_new in ((1, 1), (1, 2), (12, 3)):
        identical(target, prompt(2, length), treespec.TreeSpeculation(draft, tree=8), max_new_tokens=num_new)


def by_row(out, name):
    """Scores, logits or last hidden states of new tokens, [B, L, V or H]."""
    return torch.stack([step[-1][:, -1] if name == "hidden_states" else step for step in getattr(out, name)], 1)


def test_scores_and_logits_of_emitted_tokens(target):
    """Accepted nodes have them, wherever they are in their trees, up to the end of their row.

    The drafter plants what would follow the end: it is accepted, and cut off with its scores and states.
    """
    inputs, options = padded_batch(), {**OPTIONS, "repetition_penalty": 1.3}
    free = target.generate(**inputs, **options)[:, 14:].tolist()
    ends = [free[0][3], free[1][8], free[2][13]]
    options |= {"eos_token_id": ends, "pad_token_id": 0, "return_dict_in_generate": True}
    options |= {"output_scores": True, "output_logits": True, "output_hidden_states": True}
    plain = target.generate(**inputs, **options)
    lengths = [1 + next(i for i, token in enumerate(row) if token in ends) for row in free]
    assert len(set(lengths)) > 1
    speculation = treespec.TreeSpeculation(Planted(free, 64, max_width=2, max_depth=6, miss_rate=0))
    out = target.generate(**inputs, **options, custom_generate=speculation)
    assert torch.equal(out.sequences, plain.sequences)
    assert any(rank > 0 for rank in speculation.stats.num_accepted_at_rank)
    for name in ("scores", "logits", "hidden_states"):
        ours, theirs = by_row(out, name), by_row(plain, name)
        assert ours.shape == theirs.shape
        for row, length in enumerate(lengths):
            torch.testing.assert_close(ours[row, :length], theirs[row, :length], atol=1e-3, rtol=1e-4)
            assert not ours[row, length:].any()


def test_hidden_states_of_emitted_tokens(target):
    """The drafter reads some of them, too."""
    inputs = padded(prompt(3), [2, 5, 9])
    options = {**OPTIONS, "return_dict_in_generate": True, "output_hidden_states": True, "output_attentions": False}
    plain = target.generate(**inputs, **options)
    speculation = treespec.TreeSpeculation(Medusa(random_heads(3)), tree=8)
    out = target.generate(**inputs, **options, custom_generate=speculation)
    assert torch.equal(out.sequences, plain.sequences)
    assert len(out.hidden_states) == len(plain.hidden_states) == NUM_NEW
    is_token = inputs["attention_mask"].bool()
    for ours, theirs in zip(out.hidden_states, plain.hidden_states, strict=True):
        for state, expected in zip(ours, theirs, strict=True):
            assert state.shape == expected.shape
            shown = is_token if state.shape[1] > 1 else slice(None)
            torch.testing.assert_close(state[shown], expected[shown], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("num_cached", [7, 11])
def test_tokens_of_a_given_cache_have_no_hidden_states(target, draft, num_cached):
    """As in plain `generate`: the first ones are those of the prompt's other tokens."""
    ids, options = prompt(1), {**OPTIONS, "return_dict_in_generate": True, "output_hidden_states": True}
    with torch.no_grad():
        cache = cache_in(target(ids[:, :num_cached], use_cache=True))
    plain = target.generate(ids, **{CACHE_NAME: deepcopy(cache)}, **options)
    options["custom_generate"] = treespec.TreeSpeculation(draft, tree=8)
    out = target.generate(ids, **{CACHE_NAME: cache}, **options)
    assert torch.equal(out.sequences, plain.sequences)
    assert plain.hidden_states[0][0].shape[1] == ids.shape[1] - num_cached
    torch.testing.assert_close(out.hidden_states, plain.hidden_states, atol=1e-4, rtol=1e-4)


def test_num_return_sequences_and_seeds(target, draft):
    ids = prompt(2)
    options = {"max_new_tokens": 12, "do_sample": True, "num_return_sequences": 3}

    def run(seed):
        return target.generate(ids, **options, custom_generate=treespec.TreeSpeculation(draft, tree=8, seed=seed))

    assert run(5).shape == (6, ids.shape[1] + 12)
    assert torch.equal(run(5), run(5))
    assert not torch.equal(run(5), run(6))
    torch.manual_seed(0)
    first = run(None)
    torch.manual_seed(0)
    assert torch.equal(run(None), first)
    assert not torch.equal(run(None), first)


class Chunks(BaseStreamer):
    """Keeps what it is given."""

    def __init__(self):
        self.chunks, self.num_ends = [], 0

    def put(self, value):
        self.chunks.append(value)

    def end(self):
        self.num_ends += 1


@pytest.mark.parametrize("is_given_to_the_call", [False, True])
def test_streaming_in_accepted_chunks(target, draft, is_given_to_the_call):
    ids, chunks = prompt(1), Chunks()
    given = {"streamer": chunks}
    own, of_call = ({}, given) if is_given_to_the_call else (given, {})
    speculation = treespec.TreeSpeculation(draft, tree=8, **own)
    out = treespec.generate(target, {"input_ids": ids}, speculation, **of_call, **OPTIONS)
    assert torch.equal(out, target.generate(ids, **OPTIONS))
    assert torch.equal(torch.cat(chunks.chunks, dim=1), out)
    assert chunks.num_ends == 1
    assert len(chunks.chunks) - 2 == speculation.stats.num_target_passes, "the prompt, its first token, a step each"
    assert speculation.options.streamer is own.get("streamer")


@pytest.mark.parametrize("options", [{"num_beams": 2}, {"max_new_tokens": -1}, {"nonsense": 1}, {}])
def test_a_streamer_ends_once_whatever_happens(target, draft, options):
    streamer, ids = Chunks(), prompt(2)
    with pytest.raises((ValueError, treespec.TreespecError)):
        treespec.generate(target, ids, treespec.TreeSpeculation(draft), streamer=streamer, **OPTIONS | options)
    assert streamer.num_ends == 1


class Listener(treespec.Observer):
    """Keeps every row's tokens."""

    def __init__(self):
        self.tokens, self.num_steps = [[], [], []], 0

    def on_tokens(self, row, tokens):
        self.tokens[row] += tokens

    def on_step(self, step):
        self.num_steps += 1


def test_records_observers_and_statistics_agree(target, draft, monkeypatch):
    monkeypatch.setattr("treespec.engine.stats.perf_counter", partial(next, count()))
    inputs, listeners = padded_batch(), [Listener(), Listener()]
    options = OPTIONS | {
        "eos_token_id": int(target.generate(**inputs, **OPTIONS)[0, 22])
    }  # The first row leaves early.
    speculation = treespec.TreeSpeculation(draft, tree=8, record_steps=True, observers=listeners)
    stats = identical(target, inputs, speculation, **options)
    new, steps = target.generate(**inputs, **options)[:, 14:].tolist(), speculation.steps
    assert len(steps) - 1 == stats.num_target_passes
    emitted = [[], [], []]
    for step in steps:
        for row, tokens in zip(step.rows, step.emitted, strict=True):
            emitted[row] += tokens
    assert emitted == listeners[0].tokens == listeners[1].tokens
    assert [tokens + [0] * (len(new[0]) - len(tokens)) for tokens in emitted] == new
    assert len(emitted[0]) < len(emitted[2])
    assert listeners[0].num_steps == len(steps)
    assert sum(stats.acceptance_histogram.values()) == stats.num_drafts == sum(len(step.rows) for step in steps[1:])
    accepted = sum(k * count for k, count in stats.acceptance_histogram.items())
    assert accepted == stats.num_accepted_tokens == sum(stats.num_accepted_at_node.values())
    assert accepted == sum(stats.num_accepted_at_depth.values()) == sum(stats.num_accepted_at_rank.values())
    assert stats.mean_acceptance_length == 1 + accepted / stats.num_drafts
    assert stats.num_emitted_tokens == sum(map(len, emitted))
    assert all(0 <= share <= 1 for share in (*stats.acceptance_per_depth.values(), *stats.acceptance_per_node.values()))
    assert stats.seconds["target"] == stats.num_target_passes, "a second per pass: the clock is read at both ends"


class Redrafted(AddOn):
    """Drafts with another drafter, and forbids a token."""

    def __init__(self, drafter, token):
        self._drafter, self._token, self.num_steps = drafter, token, 0

    def for_draft(self, drafter):
        return self._drafter

    def for_paths(self, processors):
        return [*processors, SuppressTokensLogitsProcessor([self._token])]

    def on_step(self, step):
        self.num_steps += 1


def test_add_ons_among_the_observers_change_the_parts_of_a_call(target, draft):
    plain = target.generate(prompt(2), **OPTIONS)
    token = int(plain[0, prompt(2).shape[1]])
    add_on = Redrafted(as_drafter(draft), token)
    speculation = treespec.TreeSpeculation(treespec.SuffixLookup(), tree=8, observers=[add_on])
    out = target.generate(prompt(2), custom_generate=speculation, **OPTIONS)
    assert torch.equal(out, target.generate(prompt(2), suppress_tokens=[token], **OPTIONS))
    assert not torch.equal(out, plain)
    assert add_on.num_steps > 0
    assert speculation.stats.num_draft_tokens > 0


def test_static_cache(target, draft):
    speculation = treespec.TreeSpeculation(draft, tree=8)
    identical(target, padded_batch(), speculation, **OPTIONS, cache_implementation="static")


def test_an_empty_static_cache_of_the_callers_is_not_filled_and_a_warning_says_so(target, draft):
    cache = StaticCache(config=target.config, max_cache_len=64)
    speculation = treespec.TreeSpeculation(draft, tree=8)
    with pytest.warns(treespec.TreespecWarning, match="StaticCache stays empty: pass a DynamicCache"):
        out = target.generate(prompt(1), **OPTIONS, **{CACHE_NAME: cache}, custom_generate=speculation)
    assert torch.equal(out, target.generate(prompt(1), **OPTIONS))


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.resize_token_embeddings(72, mean_resizing=False),
        lambda model: model.bfloat16(),
        lambda model: model.double(),
    ],
    ids=["size", "bfloat16", "float64"],
)
def test_models_that_change_after_the_draft_model_was_given(change):
    target = tiny_llama()
    draft = noisy_copy(target)
    speculation = treespec.TreeSpeculation(draft, tree=8)
    for _ in range(2):
        assert identical(target, prompt(2), speculation, **OPTIONS).mean_acceptance_length > 1.5
        change(target)
        change(draft)


def test_from_config_speaks_vllm(target, draft):
    configs = [
        {"method": "draft_model", "model": draft, "speculative_token_tree": "[(0,), (1,), (0, 0)]"},
        {"method": "ngram", "prompt_lookup_max": 3},
        {"method": "suffix"},
        {"method": "recycling"},
    ]
    for config in configs:
        identical(target, prompt(1), treespec.from_config(config | {"num_speculative_tokens": 3}), **OPTIONS)


def test_a_conversation_continues_in_its_cache(target, draft):
    """The returned cache and an empty one of the caller hold all but the last token; the next turn goes on in them."""
    ids, speculation = prompt(1), treespec.TreeSpeculation(draft, tree=8)
    mine, options = DynamicCache(), {**OPTIONS, "custom_generate": speculation, "return_dict_in_generate": True}
    first = target.generate(ids, **{CACHE_NAME: mine}, **options)
    assert cache_in(first) is mine
    assert mine.get_seq_length() == first.sequences.shape[1] - 1
    assert {type(layer) for layer in mine.layers} == {DynamicLayer}  # transformers' own.
    turn = torch.cat([first.sequences, prompt(1, 5, seed=9)], dim=1)
    plain = target.generate(turn, **OPTIONS)
    assert torch.equal(target.generate(turn, **{CACHE_NAME: deepcopy(mine)}, **OPTIONS), plain)
    second = target.generate(turn, **{CACHE_NAME: mine}, **options)
    assert torch.equal(second.sequences, plain)
    third = target.generate(prompt(2), **options)
    assert cache_in(third) is None


@pytest.mark.filterwarnings("ignore:.*by chains:treespec.TreespecWarning")
def test_a_model_that_counts_slots_and_takes_no_positions_serves_one_row():
    """Rows that accept unequally would shift each other: BART's decoder, Whisper's and others of that kind."""
    sizes = {"d_model": 32, "decoder_layers": 1, "decoder_ffn_dim": 48, "decoder_attention_heads": 4, "init_std": 0.3}
    torch.manual_seed(0)
    model = BartForCausalLM(BartConfig(vocab_size=64, is_encoder_decoder=False, **sizes)).eval()
    model.generation_config.pad_token_id = 1
    speculation = treespec.TreeSpeculation(treespec.TokenRecycling(), tree=8)
    options = {**OPTIONS, "eos_token_id": None}
    identical(model, prompt(1), speculation, **options)
    with pytest.raises(UnsupportedModelError, match=r"counts the slots of its cache.*one by one"):
        model.generate(prompt(2), **options, custom_generate=speculation)
