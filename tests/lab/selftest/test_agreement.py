"""When output counts as that of plain greedy decoding: near-ties, lengths."""

import types

import pytest
import torch
from helpers.tiny import prompt, tiny_llama

from treespec.lab.selftest.agreement import Agreement, compare, plain_greedy


@pytest.fixture(scope="module")
def model():
    return tiny_llama()


def test_plain_reference_is_generate_with_its_gaps(model):
    ids = prompt()
    plain = plain_greedy(model, {"input_ids": ids}, 10)
    assert plain.tokens == model.generate(ids, max_new_tokens=10, do_sample=False)[0, ids.shape[1] :].tolist()
    logits = model(torch.cat([ids[0], torch.tensor(plain.tokens)])[None]).logits[0, ids.shape[1] - 1 : -1]
    ordered = logits.sort(-1, descending=True).values
    assert torch.allclose(torch.tensor(plain.gaps), ordered[:, 0] - ordered[:, 1], atol=1e-4)


def test_identical_output_is_right_and_a_missing_token_is_not(model):
    ids = prompt()
    plain = plain_greedy(model, {"input_ids": ids}, 6)
    agreement = compare(model, ids[0], plain, plain.tokens)
    assert agreement.is_identical
    assert agreement.is_right
    assert compare(model, ids[0], plain, plain.tokens[:-1]) == Agreement(5, False)


@pytest.mark.parametrize("position", [0, 3, 5])
def test_another_token_is_wrong_unless_plain_had_a_tie_there(model, position):
    ids = prompt()
    plain = plain_greedy(model, {"input_ids": ids}, 6)
    output = [*plain.tokens[:position], (plain.tokens[position] + 1) % 64, *plain.tokens[position + 1 :]]
    agreement = compare(model, ids[0], plain, output)
    assert (agreement.position, agreement.is_right) == (position, False)
    claimed_tie = [gap if i != position else 1e-5 for i, gap in enumerate(plain.gaps)]
    assert not compare(model, ids[0], type(plain)(plain.tokens, claimed_tie), output).is_right


def test_a_tie_excuses_what_goes_on_greedily(model):
    """A stand-in whose logits are all equal: every output is greedy up to ties."""

    def flat(ids, logits_to_keep):
        return types.SimpleNamespace(logits=torch.zeros(1, logits_to_keep, 64))

    ids = prompt()
    plain = plain_greedy(model, {"input_ids": ids}, 6)
    output = [(plain.tokens[0] + 5) % 64, *plain.tokens[1:]]
    assert compare(flat, ids[0], type(plain)(plain.tokens, [0.0] * 6), output).is_excused
