"""`prefix_allowed_tokens_fn` along the branches of a tree."""

import pytest
import torch
from helpers.grammars import OPTIONS, drafted_texts
from helpers.tiny import padded, prompt
from transformers import LogitsProcessor, LogitsProcessorList, NoRepeatNGramLogitsProcessor
from transformers.generation.logits_process import PrefixConstrainedLogitsProcessor

from treespec import TokenRecycling, TreeSpeculation
from treespec.errors import ConfigError
from treespec.grammars.prefix_function import PrefixProcessor, along_branches

TITLES = [[5, 9, 13], [5, 9, 20, 21, 22], [30, 31], [5, 40, 41, 42, 43]]
STOP = 1


class Titles:
    """One of a few titles in every row, then the end: a trie, which knows no other text. Row 1 has the first two."""

    def __init__(self, num_prompt):
        self.num_prompt, self.texts = num_prompt, []

    def __call__(self, row, ids):
        text = ids[self.num_prompt :].tolist()
        self.texts.append((row, *text))
        if STOP in text:
            return [STOP]  # Plain decoding asks about rows that have ended.
        titles = [title for title in TITLES[: 2 if row == 1 else None] if title[: len(text)] == text]
        assert titles, f"nobody may ask about {text}"
        return sorted({title[len(text)] if len(text) < len(title) else STOP for title in titles})


@pytest.mark.parametrize("do_sample", [False, True])
def test_titles_from_a_trie(target, draft, do_sample):
    inputs = padded(prompt(3), [0, 2, 4])
    options = OPTIONS | {"eos_token_id": STOP, "pad_token_id": 0, "do_sample": do_sample}
    plain = target.generate(**inputs, **options, prefix_allowed_tokens_fn=Titles(12))
    for drafter in (draft, TokenRecycling()):
        titles = Titles(12)
        speculation = TreeSpeculation(drafter, tree=8, seed=0, record_steps=True)
        out = target.generate(**inputs, **options, prefix_allowed_tokens_fn=titles, custom_generate=speculation)
        assert do_sample or torch.equal(out, plain)
        assert len(titles.texts) == len(set(titles.texts)), "the function is asked once about every text"
        for row in out[:, 12:].tolist():
            assert [token for token in row if token not in (0, STOP)] in TITLES
        for text in drafted_texts(speculation, 3):
            ended = text[: text.index(STOP)] if STOP in text else text
            assert any(ended == title[: len(ended)] for title in TITLES)


def test_scores_are_the_librarys(target):
    """Also where earlier processors left none of the allowed tokens."""
    scores = torch.randn(3, 64, generator=torch.Generator().manual_seed(0))
    scores[1, 3:9] = -torch.inf
    ids = prompt(3)

    def function(row, text):
        return [3, 4, 8] if len(text) == 12 else torch.tensor([2])

    (processor,) = along_branches([PrefixConstrainedLogitsProcessor(function, 1)], ids[:1].repeat(3, 1))
    expected = PrefixConstrainedLogitsProcessor(function, 1)(ids, scores)
    assert isinstance(processor, PrefixProcessor)
    assert torch.equal(processor.of_row(ids, scores, 0), expected)
    following = torch.cat([ids, torch.tensor([[3], [8], [5]])], 1)
    after = processor.of_row(following, scores, 2)
    assert after.isfinite().sum(-1).tolist() == [1, 1, 1]  # 5 is forbidden, but another processor may force it.


@pytest.mark.parametrize("allowed", [[-1, 2], torch.tensor([2, -64])], ids=["list", "tensor"])
def test_negative_tokens_are_named(target, draft, allowed):
    """Plain decoding counts them from the vocabulary's end."""
    options = OPTIONS | {"do_sample": False, "prefix_allowed_tokens_fn": lambda row, ids: allowed}
    with pytest.raises(ConfigError, match="ids from 0 on, got -"):
        target.generate(prompt(1), **options, custom_generate=TreeSpeculation(draft, tree=8))


class Forced(LogitsProcessor):
    """Forces the second token of every text."""

    def __call__(self, input_ids, scores):
        forced = torch.full_like(scores, -torch.inf).index_fill_(1, torch.tensor(20), 0.0)
        return forced if input_ids.shape[1] == 13 else scores


@pytest.mark.parametrize("do_sample", [False, True])
def test_after_a_forbidden_token_that_is_forced_the_function_goes_on(target, draft, do_sample):
    """In one step with it and in later ones; drafts go on too."""
    options = OPTIONS | {"do_sample": do_sample, "logits_processor": LogitsProcessorList([Forced()])}
    options["prefix_allowed_tokens_fn"] = lambda row, text: [4, 6, 8, 10] if text[-1] != 8 else [5, 7]
    plain = target.generate(prompt(2), **options)
    for drafter in (draft, TokenRecycling()):
        speculation = TreeSpeculation(drafter, tree=8, seed=0, record_steps=True)
        out = target.generate(prompt(2), **options, custom_generate=speculation)
        assert do_sample or torch.equal(out, plain)
        for text in out[:, 12:].tolist():
            assert text[1] == 20
            allowed = [{5, 7} if before == 8 else {4, 6, 8, 10} for before in text[1:-1]]
            assert all(token in tokens for token, tokens in zip(text[2:], allowed, strict=True))
        assert drafter is not draft or any(step.trees[0].num_nodes > 1 for step in speculation.steps[3:])


@pytest.mark.parametrize("do_sample", [False, True])
def test_a_function_that_knows_no_text_with_the_forced_token(target, draft, do_sample):
    def function(row, text):
        if 20 in text[12:]:
            raise KeyError("no title holds 20")
        return [4, 6, 8]

    options = OPTIONS | {"do_sample": do_sample, "logits_processor": LogitsProcessorList([Forced()])}
    for chosen in (None, TreeSpeculation(draft, tree=8, seed=0)):
        with pytest.raises(KeyError, match="no title holds 20"):
            target.generate(prompt(1), **options, prefix_allowed_tokens_fn=function, custom_generate=chosen)


def test_other_processors_stay_as_they_are():
    processors = [NoRepeatNGramLogitsProcessor(2), PrefixConstrainedLogitsProcessor(lambda row, ids: [1], 2)]
    assert along_branches(processors, prompt()) == processors
