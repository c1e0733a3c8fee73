"""The textbook forms: against independent loops, by their exact distribution, and against the biases of well-known
versions."""

import dataclasses
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from itertools import product
from math import prod

import numpy as np
import pytest
import torch
from helpers.mutants import changed

from treespec.errors import ConfigError
from treespec.literature.textbook import chain
from treespec.literature.textbook.chain import (
    explain_round,
    simulate_round,
    speculative_decode,
    speculative_decoding_verify,
)
from treespec.protocols import RandomSource
from treespec.testing import enumerate_traces

GRID = 12  # Distributions in quarters: every ratio and every residual has its steps at multiples of 1 / lcm(1..4).
DRAFT = [[2, 1, 1], [1, 3, 0], [0, 1, 3]]
TARGET = [[1, 1, 2], [3, 0, 1], [1, 2, 1], [0, 3, 1]]
CELLS = np.full(GRID, Fraction(1, GRID))


class GridGenerator(np.random.Generator):
    """Its uniforms lie in the middle of grid cells, all of which are enumerated."""

    def __init__(self, rng: RandomSource) -> None:
        super().__init__(np.random.PCG64(0))
        self.rng, self.num_drawn = rng, 0

    def random(self, *args, **kwargs):  # pyright: ignore[reportIncompatibleMethodOverride]
        self.num_drawn += 1
        return (self.rng.pick(self.num_drawn, CELLS) + 0.5) / GRID


def prob_of(tokens: tuple[int, ...], first: int = 0) -> Fraction:
    """The target's probability of `tokens[first:]`, each after the ones before it: its rows are rolled by their sum."""
    quarters = (TARGET[i][(tokens[i] - sum(tokens[:i])) % 3] for i in range(first, len(tokens)))
    return Fraction(prod(quarters), 4 ** (len(tokens) - first))


def total_variation(decode: Callable, num_tokens: int, length: int) -> Fraction:
    """Total variation of the first `length` tokens over drafts, uniforms and the target's continuation; `decode` gets
    the drafted tokens, the distributions along them and the uniforms."""
    texts = list(product(range(3), repeat=length))
    shift = {text: -prob_of(text) for text in texts}
    draft = np.array(DRAFT[:num_tokens]) / 4
    for drafted in product(range(3), repeat=num_tokens):
        weight = prod(Fraction(row[token], 4) for row, token in zip(DRAFT, drafted, strict=False))
        target = np.array([np.roll(TARGET[i], sum(drafted[:i])) for i in range(length)]) / 4
        runs = enumerate_traces(lambda rng, d=drafted, t=target: tuple(decode(d, draft, t, GridGenerator(rng))))
        for prob, output in runs if weight else ():
            for text in texts:
                if text[: len(output)] == output:
                    shift[text] += weight * prob * prob_of(text, len(output))
    assert sum(shift.values()) == 0
    return sum(map(abs, shift.values()), Fraction(0)) / 2


def with_bonus(tokens, draft, target, generator, module=chain) -> list[int]:
    return module.speculative_decoding_verify(tokens, draft, target, 3, generator=generator)


@pytest.mark.parametrize("num_tokens", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_speculative_decode_has_exactly_the_targets_distribution(num_tokens):
    def decode(tokens, draft, target, generator):
        return speculative_decode(target, draft, tokens, generator=generator)

    assert total_variation(decode, num_tokens, num_tokens) == 0


@pytest.mark.parametrize("num_tokens", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_verify_with_bonus_has_exactly_the_targets_distribution(num_tokens):
    assert total_variation(with_bonus, num_tokens, num_tokens + 1) == 0
    draft, target = np.array([[1.0, 0.0]]), np.array([[0.0, 1.0], [0.5, 0.5]])
    assert speculative_decoding_verify([0], draft, target, 2) == [1], "no bonus after a rejection"


RESIDUAL, BONUS = "weights = (target - draft).clip(0)", "if weights.sum() > 0 else target)], i"
BIASES = {
    "resampled from the target": (RESIDUAL, "weights = target"),
    "a bonus wherever as many tokens were appended as drafted": (
        BONUS,
        "if weights.sum() > 0 else target), *[chance.pick(chain.target[-1])] * (i + 1 == len(chain.tokens))], i",
    ),
}


@pytest.mark.parametrize("name", BIASES)
def test_the_biases_of_widespread_sources_are_caught(name):
    module = changed(chain)(*BIASES[name])
    assert total_variation(partial(with_bonus, module=module), 1, 2) > Fraction(1, 20)


def random_distributions(rng, rows: int, vocab: int) -> np.ndarray:
    table = rng.dirichlet(np.full(vocab, 0.5), size=rows)
    return table / table.sum(-1, keepdims=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_torch_follows_the_global_state_coin_first(dtype):
    for seed in range(20):
        rng = np.random.default_rng(seed)
        draft, target = (torch.as_tensor(random_distributions(rng, 4, 6)).to(dtype) for _ in range(2))
        tokens = torch.tensor([int(rng.choice(6, p=row / row.sum())) for row in draft.double().numpy()])
        torch.manual_seed(seed)
        expected = []
        for i, token in enumerate(tokens.tolist()):
            if torch.rand(1).item() < min(1.0, (target[i, token].double() / draft[i, token].double()).item()):
                expected.append(token)
                continue
            rest = torch.clamp(target[i] - draft[i], min=0)
            expected.append(int(torch.multinomial(rest / rest.sum(), 1)))
            break
        torch.manual_seed(seed)
        assert speculative_decode(target, draft, tokens) == expected
        generator = torch.Generator().manual_seed(seed)
        assert speculative_decode(target, draft, tokens, generator=generator) == expected


def test_arrays_follow_numpys_global_state():
    target, draft = np.array(TARGET) / 4, np.array(DRAFT) / 4
    found = []
    for _ in range(2):
        np.random.seed(7)
        found.append([speculative_decoding_verify([0, 1, 2], draft, target, 3) for _ in range(20)])
    assert found[0] == found[1]
    assert len(set(map(tuple, found[0]))) > 1


ROWS_IN: tuple[Callable, ...] = (
    torch.as_tensor,
    np.asarray,
    np.ndarray.tolist,
    list,
    lambda rows: [torch.as_tensor(row) for row in rows],
    lambda rows: tuple(map(tuple, rows)),
)


def test_every_form_of_input_goes_with_every_other():
    target, draft = np.array(TARGET) / 4, np.array(DRAFT) / 4
    for seed, target_form, draft_form in product(range(3), ROWS_IN, ROWS_IN):
        found = [
            speculative_decoding_verify([0, 1, 2], d, t, 3, generator=np.random.default_rng(seed))
            for d, t in ((draft, target), (draft_form(draft), target_form(target)))
        ]
        assert found[0] == found[1]


def test_equal_distributions_keep_every_token_disjoint_ones_none_and_no_drafts_leave_the_bonus():
    probs = torch.softmax(torch.arange(40.0).view(4, 10).sin(), dim=-1)
    assert speculative_decode(probs.half(), probs.half(), torch.tensor([2, 5, 1, 8])) == [2, 5, 1, 8]
    assert speculative_decode([[0.0, 1.0]], [[1.0, 0.0]], [0]) == [1]
    assert speculative_decode([[1.0]], [[1.0]], [0]) == [0]
    assert speculative_decoding_verify([], np.zeros((0, 2)), [[0.0, 1.0]], 2) == [1]
    assert speculative_decoding_verify([], [], [], 2) == []
    assert simulate_round([], [[0.25, 0.75]], [], [])["accepted_tokens"] == [1]


def test_simulate_round_follows_its_statement():
    draft = [[0.6, 0.3, 0.1], [0.2, 0.5, 0.3]]
    target = [[0.3, 0.6, 0.1], [0.2, 0.1, 0.7], [0.1, 0.2, 0.7]]
    kept = simulate_round(draft, target, [0, 1], [0.49, 0.19])
    assert kept == {"accepted_tokens": [0, 1, 2], "num_generated": 3, "acceptance_rate": 1.0}
    replaced = simulate_round(draft, target, [0, 1], [0.49, 0.21])
    assert replaced == {"accepted_tokens": [0, 2], "num_generated": 2, "acceptance_rate": 0.5}
    at_once = simulate_round(torch.tensor(draft), torch.tensor(target), torch.tensor([0, 1]), torch.tensor([0.51, 0.0]))
    assert at_once == {"accepted_tokens": [1], "num_generated": 1, "acceptance_rate": 0.0}
    third = simulate_round([[0.5, 0.5]] * 3, [[1.0, 0.0]] * 3, [0, 1, 0], [0.0, 0.0, 0.0])
    assert third == {"accepted_tokens": [0, 0], "num_generated": 2, "acceptance_rate": 0.3333}
    without_bonus_row = simulate_round(draft, target[:2], [0, 1], [0.0, 0.0])
    assert without_bonus_row["accepted_tokens"] == [0, 1]


def test_explain_round_reports_both_readings_and_a_round_without_a_rejection():
    round_ = explain_round([0.3, 0.2, 0.1, 0.5], [0.2, 0.4, 0.5, 0.5], [0.99, 0.4, 0.6, 0.0])
    assert [step.verdict for step in round_.steps] == ["accepted", "accepted", "rejected", "discarded"]
    assert [step.ratio for step in round_.steps] == pytest.approx([1.5, 0.5, 0.2, 1.0])
    assert (round_.num_accepted, round_.num_appended, round_.num_appended_with_replacement) == (2, 2, 3)
    assert "coin 0.6 is greater than the ratio 0.2" in round_.steps[2].reason
    text = str(round_)
    assert "not replaced: 2 appended" in text
    assert "replaced by a residual token: 3 appended" in text
    assert text.count("\n") == 4
    assert dataclasses.asdict(round_)["steps"][1]["coin"] == 0.4
    round_ = explain_round(np.array([0.5, 0.1]), torch.tensor([0.5, 0.2]), (1.0, 0.5))
    assert (round_.num_appended, round_.num_appended_with_replacement) == (2, 2)
    assert "no token was rejected" in str(round_)


def test_a_coin_equal_to_the_ratio_accepts_on_the_decimals_as_written():
    assert explain_round([0.25], [0.5], [0.5]).num_accepted == 1
    assert simulate_round([[0.5, 0.5]], [[0.25, 0.75]], [0], [0.5])["acceptance_rate"] == 0.0, "where the two differ"
    for form in (list, np.array, torch.tensor, lambda x: np.array(x, dtype=np.float32)):
        # In binary .06 / .2 < .3: float arithmetic would reject.
        assert explain_round(form([0.06]), form([0.2]), form([0.3])).num_accepted == 1
        assert explain_round(form([0.06]), form([0.2]), form([0.3001])).num_accepted == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: speculative_decode([[0.5, 0.6]], [[0.5, 0.5]], [0]), r"target_probs\[0\] must be a probability dist"),
        (lambda: speculative_decode([[0.5, 0.5]], [[1.0, 0.0]], [1]), "probability zero"),
        (lambda: speculative_decode([[0.5, 0.5]] * 2, [[0.5, 0.5]], [0]), "1 draft tokens need"),
        (lambda: speculative_decode([[0.5, 0.5]], [[0.5, 0.25, 0.25]], [0]), "vocabularies differ"),
        (lambda: speculative_decode([[0.5, 0.5]], [[0.5, 0.5]], [2]), "outside the vocabulary"),
        (lambda: speculative_decode([[0.5, 0.5]], [[0.5, 0.5]], [0.0]), "must be integers"),
        (lambda: speculative_decode([0.5, 0.5], [[0.5, 0.5]], [0]), "shape"),
        (lambda: speculative_decode([["a", "b"]], [[0.5, 0.5]], [0]), "array of numbers"),
        (lambda: speculative_decode(np.zeros((0, 2)), np.zeros((0, 2)), []), "at least one draft token"),
        (lambda: speculative_decode([[0.5, 0.5]], [[0.5, 0.5]], [0], generator=3), "generator must be"),  # pyright: ignore
        (lambda: speculative_decoding_verify([0], [[0.5, 0.5]], [[0.5, 0.5]], 3), "expected 3"),
        (lambda: speculative_decoding_verify([0], [[0.5, 0.5]], [[0.5, 0.5]], 2.0), "vocab_size must be an integer"),  # pyright: ignore
        (lambda: speculative_decode([[0.5 + 0j, 0.5]], [[0.5, 0.5]], [0]), "target_probs must.*complex"),
        (lambda: simulate_round([[0.5, 0.5]], [[0.5, 0.5]], [0], [1.5]), "must lie in"),
        (lambda: simulate_round([[0.5, 0.5]], [[0.5, 0.5]], [0], [0.5, 0.5]), r"shape \[1\]"),
        (lambda: explain_round([0.5], [0.0], [0.5]), "draft_token_probs"),
        (lambda: explain_round([0.5], [0.5, 0.5], [0.5]), "shape"),
        (lambda: explain_round(["x"], [0.5], [0.5]), "must hold numbers"),
    ],
)
def test_misuse_is_named(call, message):
    with pytest.raises(ConfigError, match=message):
        call()
