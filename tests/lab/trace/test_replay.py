"""Recorded steps, verified again."""

import pytest
from helpers.traced import LARGE, LARGE_DRAFT, TARGET, record

import treespec
from treespec.errors import ConfigError, RuleMismatchError, TraceError
from treespec.lab.trace import replay
from treespec.literature import ThresholdAcceptance
from treespec.tree import Verdict
from treespec.verification import RULES, Traversal

MODELS = {"dense form": ("draft model", TARGET), "tree walk": (LARGE_DRAFT, LARGE)}


@pytest.mark.parametrize(
    ("rule", "form"), [("traversal", "dense form"), ("greedy", "dense form"), ("recursive", "tree walk")]
)
def test_the_same_rule_gives_the_same_verdicts(tmp_path, rule, form):
    drafter, model = MODELS[form]
    is_sampling = rule != "greedy"
    options = {"rule": rule if is_sampling else "auto", "is_sampling": is_sampling, "top_p": 0.9} if is_sampling else {}
    _, _, trace = record(
        tmp_path / "run.jsonl", drafter, model=model, num_rows=2, full=True, max_new_tokens=10, **options
    )
    found = replay(trace)
    recorded = [Verdict(tuple(step.path), step.next_token, step.is_bonus) for step in trace.steps]
    assert found.verdicts == recorded
    assert found.num_nodes == [step.num_nodes for step in trace.steps]
    assert replay(trace, max_nodes=100, max_depth=100, max_children=100).verdicts == recorded


def test_other_rules_and_shapes_are_replayed(tmp_path):
    _, speculation, trace = record(tmp_path / "run.jsonl", is_sampling=True, full=True, max_new_tokens=24)
    same = replay(trace).mean_acceptance_length
    assert same >= speculation.stats.mean_acceptance_length
    assert 1 < replay(trace, "target_walk").mean_acceptance_length < same + 1
    lengths = [replay(trace, max_depth=depth).mean_acceptance_length for depth in (0, 1, 8)]
    assert lengths[0] == 1
    assert lengths[1] <= 2
    assert lengths[2] == same
    assert replay(trace, max_children=1).num_nodes < replay(trace).num_nodes
    assert max(replay(trace, max_nodes=3).num_nodes) == 3


class OtherTraversal(Traversal):
    """The caller's own, under a name of treespec's."""


OWN = [ThresholdAcceptance(single=0.01, accumulated=0.01), OtherTraversal()]


@pytest.mark.parametrize("rule", OWN, ids=["other settings", "own"])
def test_a_rule_that_no_name_stands_for_has_to_be_given(tmp_path, rule):
    _, _, trace = record(tmp_path / "run.jsonl", is_sampling=True, full=True, rule=rule, max_new_tokens=24)
    shown = type(rule).__name__
    assert {trace.calls[0].about["rule"], *(step.rule for step in trace.steps)} == {f"unregistered {rule!r}"}
    with pytest.raises(TraceError, match=rf"rule that is not registered \({shown}.*: give it, replay\(trace, rule="):
        replay(trace)
    assert replay(trace, rule).verdicts == [step.verdict for step in trace.steps]


def test_a_rule_is_recorded_by_the_name_that_it_is_registered_by(tmp_path):
    RULES.register("mine", OWN[0])
    try:
        _, _, trace = record(tmp_path / "run.jsonl", is_sampling=True, full=True, rule=OWN[0], max_new_tokens=24)
        assert {trace.calls[0].about["rule"], *(step.rule for step in trace.steps)} == {"mine"}
        assert replay(trace).verdicts == [step.verdict for step in trace.steps]
    finally:
        RULES.forget("mine")
    with pytest.raises(TraceError, match=r"rule that is not registered \(mine\)"):
        replay(trace)


def test_greedy_steps_of_a_rule_without_a_name_are_the_target_walks(tmp_path):
    _, _, trace = record(tmp_path / "run.jsonl", full=True, rule=OtherTraversal())
    assert trace.calls[0].about["rule"] == "unregistered OtherTraversal()"
    assert replay(trace).verdicts == [step.verdict for step in trace.steps]


def test_what_cannot_be_replayed(tmp_path):
    _, _, trace = record(tmp_path / "run.jsonl", is_sampling=True)
    with pytest.raises(TraceError, match="without distributions"):
        replay(trace)
    _, _, full = record(tmp_path / "full.jsonl", is_sampling=True, full=True)
    with pytest.raises(ConfigError, match="no verification rule"):
        replay(full, "nonsense")
    with pytest.raises(ConfigError, match="max_depth"):
        replay(full, max_depth=-1)
    with pytest.raises(RuleMismatchError):
        replay(full, "token")
    for file in (tmp_path / "full.jsonl.distributions").iterdir():
        file.unlink()
    with pytest.raises(TraceError, match="cannot be read"):
        replay(treespec.read_trace(tmp_path / "full.jsonl"))
