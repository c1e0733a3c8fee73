"""Text that must follow is drafted, though other tokens spell it too."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers.grammars import constrained
from helpers.text_tokenizers import byte_level
from helpers.tiny import noisy_copy, prompt, tiny_llama

from treespec import TokenRecycling, TreeSpeculation
from treespec.grammars import GrammarProcessor
from treespec.grammars.drafts import GrammarDrafts
from treespec.grammars.forced_text import MAX_CHOICES, ForcedText, forced_tokens, spellings_of
from treespec.tree import HostTree, TokenTree

SPELLINGS = ["n", "na", "name", 'name"', "x", "nam", "nb", None, ""]


@pytest.mark.parametrize(
    ("allowed", "expected"),
    [
        ([], []),
        ([7], [7]),
        ([0, 1, 2, 3], [3, 2, 1, 0]),
        ([0, 5, 1], [5, 1, 0]),
        ([0, 1, 5, 6], []),
        ([0, 4], []),
        ([0, 1, 7], []),
        ([0, 1, 8], []),
        ([1, 9], []),
    ],
)
def test_tokens_that_begin_one_text_longest_first(allowed, expected):
    mask = torch.zeros(12, dtype=torch.bool)
    mask[allowed] = True
    assert forced_tokens(mask, SPELLINGS) == expected
    assert forced_tokens(mask, None) == (expected if len(allowed) == 1 else [])


def test_many_choices_are_not_searched():
    size = MAX_CHOICES + 1
    assert forced_tokens(torch.ones(size, dtype=torch.bool), ["a" * (n + 1) for n in range(size)]) == []


class Alternating:
    """A `Constraint`: `abc`, then `d` or `e`, and so on; token 8 may end the text after a `d`."""

    texts = ("a", "ab", "abc", "b", "bc", "c", "d", "e")

    def allowed(self, row, tokens):
        text = "".join([*self.texts, ""][token] for token in tokens)
        rest = text[len(text) // 4 * 4 :]
        is_allowed = [part == "abc"[len(rest) :][: len(part)] for part in self.texts]
        is_allowed = [part in "de" for part in self.texts] if rest == "abc" else is_allowed
        return torch.tensor([*is_allowed, text.endswith("d")])


A, AB, ABC, B, BC, C, D, E, END = range(9)


@pytest.mark.parametrize(
    ("drafted", "num_nodes", "is_chain", "expected"),
    [
        ([], 4, False, {(ABC,): 0.6, (AB,): 0.2, (AB, C): 0.2}),
        ([], 6, False, {(ABC,): 0.6, (AB,): 0.2, (AB, C): 0.2, (A,): 0.1, (A, BC): 0.06}),
        ([], 8, True, {(ABC,): 0.6}),
        ([((ABC,), 0.3), ((ABC, E), 0.2)], 4, False, {(ABC,): 0.6, (ABC, E): 0.4, (ABC, E, ABC): 0.24}),
        ([((ABC,), 0.8), ((ABC, E), 0.4)], 3, False, {(ABC,): 0.8, (ABC, E): 0.4}),
        ([((ABC,), 0.8), ((ABC, D), 0.1), ((ABC, E), 0.3)], 9, True, {(ABC,): 0.8, (ABC, E): 0.3, (ABC, E, ABC): 0.18}),
        ([((E,), 0.9), ((E, D), 0.9), ((AB,), 0.5)], 4, False, {(ABC,): 0.6, (AB,): 0.5, (AB, C): 0.5}),
    ],
)
def test_text_is_added_to_a_tree_by_value(drafted, num_nodes, is_chain, expected):
    paths = [(), *(path for path, _ in drafted)]
    tokens, parents = [0, *(path[-1] for path in paths[1:])], [-1, *(paths.index(path[:-1]) for path in paths[1:])]
    tree = HostTree(tokens, parents, [1.0, *(value for _, value in drafted)])
    found = ForcedText([Alternating()], Alternating.texts, [END]).add_to(tree, 0, (), num_nodes, 8, is_chain)
    built = [()]
    for token, parent in zip(found.tokens[1:], found.parents[1:], strict=True):
        built.append((*built[parent], token))
    assert dict(zip(built[1:], found.values[1:], strict=True)) == pytest.approx(expected)


def test_no_text_follows_the_end_or_is_deeper_than_allowed():
    forced = ForcedText([Alternating()], Alternating.texts, [END])
    tree = HostTree([0, END], [-1, 0], [1.0, 0.9])
    assert forced.add_to(tree, 0, (ABC, D), 3, 8).tokens == [0, END]
    assert len(forced.add_to(HostTree([0], [-1], [1.0]), 0, (), 9, 1).tokens) == 4


def test_selected_nodes_that_are_forbidden_leave_the_tree_with_what_is_below_them():
    forced = ForcedText([Alternating()], Alternating.texts, [END])
    assert [forced.allows(0, (ABC,), token) for token in (A, D, E, END, END + 1)] == [False, True, True, False, False]
    never: Any = SimpleNamespace(allowed=lambda row, tokens: None)
    assert not ForcedText([never], None, []).allows(0, (), A), "nothing follows what is forbidden"
    tree = TokenTree.from_paths([(0,), (1,), (0, 0), (0, 1), (1, 0)], [0, ABC, D, D, A, E])
    drafts: Any = GrammarDrafts(TokenRecycling(), forced)
    assert drafts._are_allowed(tree, 0, (), 8) == [True, True, False, True, False, False, False, False]


def test_how_a_text_is_spelled_is_learned():
    forced, root = ForcedText([Alternating()], Alternating.texts, []), HostTree([0], [-1], [1.0])
    for _ in range(20):
        forced.learn(0, (ABC, E), [AB, C, E])
    first, second = forced.add_to(root, 0, (), 3, 8).tokens[1:]
    assert (first, second) == (AB, C)


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
        first = with_text.steps[1].trees[0]
        assert tokenizer.decode(first.tokens).startswith(" to")
