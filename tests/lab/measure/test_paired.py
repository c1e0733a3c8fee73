"""One timed call of `generate`: rows up to their ends, passes, and what reading the prompt took and gave."""

import pytest
import torch
from helpers.tiny import prompt, tiny_llama

from treespec import Chain, SuffixLookup, TreeSpeculation
from treespec.lab.measure.paired import Bench, Contestant, in_turn, timed_call, up_to_end


@pytest.mark.parametrize("num_rows", [1, 3])
@pytest.mark.parametrize("is_speculating", [False, True])
def test_a_call_is_read_once_and_counted(num_rows: int, is_speculating: bool) -> None:
    model = tiny_llama()
    ids = torch.cat([prompt(seed=seed) for seed in range(num_rows)])
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    options = {"custom_generate": TreeSpeculation(SuffixLookup(), tree=Chain(2))} if is_speculating else {}
    run = timed_call(model, inputs, {"max_new_tokens": 6, "do_sample": False, **options})
    plain = model.generate(**inputs, max_new_tokens=6, do_sample=False)[:, ids.shape[1] :].tolist()
    assert run.rows == plain
    assert run.tokens == plain[0]
    assert (run.num_tokens, run.num_read) == (6 * num_rows, num_rows)
    assert 0 < run.reading < run.seconds
    assert run.num_passes == 6 or is_speculating
    assert not model._forward_pre_hooks, "the counting hook is gone"


def test_rows_end_with_their_end() -> None:
    assert up_to_end([3, 2, 0, 0], {2}) == [3, 2]
    assert up_to_end([3, 4], {2}) == [3, 4]
    assert up_to_end([3, 4], set()) == [3, 4]


def test_prompts_are_decoded_in_rotating_order_from_the_same_seed() -> None:
    order = []

    class Noted(Contestant):
        def start(self, bench):
            decode = super().start(bench)
            return lambda name: order.append(self.name) or decode(name)

    model = tiny_llama()
    inputs = {name: {"input_ids": prompt(seed=seed)} for seed, name in enumerate("abc")}
    bench = Bench(model, inputs, 4, {"do_sample": True, "temperature": 1.0}, seed=7)
    contestants = [Noted("one", dict), Noted("two", dict, tiny_llama())]
    found = list(in_turn(contestants, bench, 1, ["b", "c"]))
    assert [name for name, _ in found] == ["b", "c"]
    assert order == ["one", "two", "one", "two", "two", "one"]
    for _, runs in found:
        assert list(runs) == ["one", "two"]
        assert runs["one"].rows == runs["two"].rows, "equal models, equal random numbers"
    assert list(in_turn(contestants, bench, 1, [])) == []
