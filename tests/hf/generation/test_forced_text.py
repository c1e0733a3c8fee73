"""Text that must follow is drafted, though other tokens spell it too."""

import pytest
import torch
from helpers.grammars import constrained
from helpers.text_tokenizers import byte_level
from helpers.tiny import noisy_copy, prompt, tiny_llama

from treespec import TokenRecycling, TreeSpeculation
from treespec.hf import GrammarProcessor
from treespec.hf.generation.forced_text import MAX_CHOICES, forced_token, spellings_of

SPELLINGS = ["n", "na", "name", 'name"', "x", "nam", "nb", None, ""]


@pytest.mark.parametrize(
    ("allowed", "expected"),
    [
        ([], None),
        ([7], 7),
        ([0, 1, 2, 3], 3),
        ([0, 5, 1], 5),
        ([0, 1, 5, 6], 0),
        ([0, 4], None),
        ([0, 1, 7], None),
        ([0, 1, 8], None),
        ([1, 9], None),
    ],
)
def test_the_longest_token_that_begins_or_continues_all_others(allowed, expected):
    mask = torch.zeros(12, dtype=torch.bool)
    mask[allowed] = True
    assert forced_token(mask, SPELLINGS) == expected
    assert forced_token(mask, None) == (expected if len(allowed) == 1 else None)


def test_many_choices_are_not_searched():
    size = MAX_CHOICES + 1
    assert forced_token(torch.ones(size, dtype=torch.bool), ["a" * (n + 1) for n in range(size)]) is None


def test_added_tokens_spell_nothing():
    tokenizer = byte_level(400)
    spellings = spellings_of(tokenizer)
    assert spellings is spellings_of(tokenizer)
    assert spellings[tokenizer.eos_token_id] is None
    assert spellings[tokenizer.encode(" the")[-1]] == "Ġthe"


class Letter:
    """One of two letters of thanks in any spelling, then the end."""

    texts = (" to the licensor of the work", " to any person of the work")

    def __init__(self, tokenizer, text=""):
        self.tokenizer, self.text = tokenizer, text
        self.spellings = [(text or "").replace("Ġ", " ") for text in spellings_of(tokenizer)]

    def fork(self):
        return Letter(self.tokenizer, self.text)

    def advance(self, token):
        self.text += self.spellings[token]

    def mask(self):
        rest = [text[len(self.text) :] for text in self.texts if text.startswith(self.text)]
        mask = torch.tensor([any(text and r.startswith(text) for r in rest) for text in self.spellings])
        mask[self.tokenizer.eos_token_id] = "" in rest
        return mask


@pytest.mark.parametrize("do_sample", [False, True])
def test_forced_text_is_drafted_by_no_drafter(do_sample):
    tokenizer = byte_level(400)
    target = tiny_llama(400)
    processor, inputs = GrammarProcessor(Letter(tokenizer)), {"input_ids": prompt(2)}
    options = {"max_new_tokens": 30, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": 0, "do_sample": do_sample}
    plain = constrained(target, inputs, processor, **options)
    for drafter in (TokenRecycling(), noisy_copy(target)):
        with_text = TreeSpeculation(drafter, tree=8, tokenizer=tokenizer, seed=0, record_steps=True)
        out = constrained(target, inputs, processor, **options, custom_generate=with_text)
        assert do_sample or torch.equal(out, plain)
        assert with_text.stats.num_draft_tokens > 10
        for row in out[:, 12:]:
            assert tokenizer.decode(row, skip_special_tokens=True) in Letter.texts
        first = with_text.steps[0].trees[0]
        assert tokenizer.decode(first.tokens[1:]).startswith(" to")
