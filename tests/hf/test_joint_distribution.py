"""The joint distribution of three sampled tokens through the whole engine, at a size for every day.

`python -m benchmarks.joint_distribution` is the same at full size; here every rule decodes 1,000 rows and must look
right, and the strongest planted bugs must be found with 2,000. What another test proves as well is slow: plain
sampling besides warped, and bugs of rules and policies, whose exact shift tests/verification/test_mutants.py finds.
"""

import json
from typing import Any

import numpy as np
import pytest

from benchmarks.joint_distribution import run as joint_distribution
from benchmarks.joint_distribution.cases import PLAIN, WARPED, InNumpy, exact_distribution, kary
from benchmarks.joint_distribution.heads import head_cases
from benchmarks.joint_distribution.run import (
    FOUND,
    Case,
    Models,
    count_batch,
    cross_fitted_distance,
    more_cases,
    p_value,
    planted_bugs,
    report,
    right_cases,
    run_case,
    start,
    tiny_models,
    verdict,
)
from treespec.verification import RULES

BUGS_OF_RULES = (
    "correction drawn from the target distribution",
    "bonus token drawn from the parent's residual",
    "top-k children treated as sampled",
)
BUGS_OF_THE_ENGINE = (
    "processors see the root's ids",
    "tree mask without ancestors",
    "positions by slot, not by depth",
    "coins and draws from one stream",
    "draft distribution stored before its processors",
)


@pytest.fixture(scope="module")
def models() -> Models:
    return tiny_models()


def strong_bugs() -> list[Any]:
    """Each strong bug once, with the rule that it harms most."""
    last = {case.bug: case for case in planted_bugs()}
    slow = [pytest.param(last[bug], id=last[bug].name, marks=pytest.mark.slow) for bug in BUGS_OF_RULES]
    return slow + [pytest.param(last[bug], id=last[bug].name) for bug in BUGS_OF_THE_ENGINE]


def every_case() -> list[Any]:
    """All right cases; quick ones are those of rules to use, on every kind of trees, with processors."""

    def is_quick(case: Case) -> bool:
        is_for_comparison = type(RULES[case.rule_name]).__module__.startswith("treespec.literature")
        return case.options is WARPED and not is_for_comparison

    slow = [case for case in right_cases() if not is_quick(case)] + more_cases()
    quick = [case for case in right_cases() if is_quick(case)]
    return [pytest.param(c, id=c.name) for c in quick] + [
        pytest.param(c, id=c.name, marks=pytest.mark.slow) for c in slow
    ]


@pytest.mark.parametrize("case", every_case())
def test_joint_distribution_is_the_targets(case, models):
    result = run_case(case, models, num_batches=1, num_rows=1000)
    assert result["p"] > 1e-4
    assert result["block_efficiency"] > 1.1 or case.trees == "merged tables"  # Tables are empty in the first batch.


@pytest.mark.parametrize("case", head_cases(), ids=lambda case: case.name)
def test_heads_draw_rightly_in_ragged_batches(case, models):
    result = run_case(case, models, num_batches=1, num_rows=1000)
    assert result["p"] > 1e-4
    assert case.drafter is None or result["block_efficiency"] > 1.1


@pytest.mark.parametrize("case", strong_bugs())
def test_planted_bug_is_found(case, models):
    assert run_case(case, models, num_batches=1, num_rows=2000)["p"] < FOUND


def test_a_planted_bug_is_gone_after_its_run(models):
    bug = next(case for case in planted_bugs() if case.bug == "tree mask without ancestors")
    run_case(bug, models, num_batches=1, num_rows=100)
    assert run_case(Case("traversal", kary("iid"), "iid", PLAIN), models, 1, 1000)["p"] > 1e-4


def test_every_rule_and_every_named_bug_is_run():
    ran = {case.rule_name for case in right_cases()}
    lossless = {name for name, rule in RULES.items() if rule.is_lossless}
    assert ran == lossless, "give a new rule its trees in `right_cases` of benchmarks/joint_distribution/cases.py"
    names = [case.name for case in right_cases() + more_cases() + planted_bugs()]
    assert len(set(names)) == len(names)
    assert {case.bug for case in planted_bugs()} >= {*BUGS_OF_RULES, *BUGS_OF_THE_ENGINE}


@pytest.mark.parametrize("options", [PLAIN, WARPED], ids=["plain", "warped"])
def test_a_rule_walks_alike_in_numpy(options, models):
    counts = []
    for rule in ("recursive", InNumpy(RULES["recursive"])):
        case = Case(rule, kary("without_replacement"), "", options)
        counts.append(count_batch(case, models, start(case, models), num_rows=200, seed=3))
    assert (counts[0] == counts[1]).all()


def test_processors_change_the_distribution(models):
    distributions = [exact_distribution(models.target, options) for options in (PLAIN, WARPED)]
    assert np.allclose([distribution.sum() for distribution in distributions], 1)
    assert np.abs(distributions[0] - distributions[1]).sum() / 2 > 0.2
    assert (distributions[1] == 0).any()


def shifted(probs: np.ndarray, distance: float) -> np.ndarray:
    """A distribution at the given total variation from `probs`, spread over all cells."""
    signs = np.resize([1.0, -1.0], len(probs))
    shift = signs * np.minimum(probs[signs > 0].sum(), probs[signs < 0].sum()) * probs
    shift[signs > 0] *= shift[signs < 0].sum() / -shift[signs > 0].sum()
    return probs + shift * (2 * distance / np.abs(shift).sum())


@pytest.mark.parametrize("distance", [0.0, 0.02, 0.1])
def test_statistics_find_a_shifted_distribution(distance):
    random = np.random.default_rng(0)
    probs = random.dirichlet(np.ones(512))
    halves = random.multinomial(100_000, shifted(probs, distance), size=2)
    estimate, error = cross_fitted_distance(halves, probs)
    assert 0.4 * distance - 4 * error < estimate < distance + 4 * error  # It may err on the small side only.
    assert (p_value(halves.sum(0), probs) < FOUND) == (distance > 0)


def outcome(p, distance=0.0, bug=None):
    return {"name": f"case {p}", "p": p, "total_variation": distance, "bug": bug}


def test_verdict_counts_what_is_wrong():
    right = [outcome(0.004), outcome(0.9)]
    assert not verdict(right)["is_right"]
    assert verdict([outcome(0.006), outcome(0.9), outcome(1e-9, 0.2, "a"), outcome(0.1, 0.003, "b")])["is_right"]
    assert not verdict([outcome(0.9), outcome(1e-5, 0.02, "a")])["is_right"]
    assert verdict(right)["bonferroni_p"] == pytest.approx(0.008)


def test_a_run_goes_on_where_it_stopped(tmp_path, monkeypatch, models):
    bugs = [case for case in planted_bugs() if "top-k" in str(case.bug)][:1]
    right, ran = right_cases()[2:4], []
    monkeypatch.setattr(joint_distribution, "right_cases", lambda: right)
    monkeypatch.setattr(joint_distribution, "planted_bugs", lambda: bugs)
    output = tmp_path / "distribution.json"
    options = ["--batches", "2", "--rows", "100", "--output", str(output), "--cache", str(tmp_path)]
    monkeypatch.setattr("sys.argv", ["joint_distribution", *options])

    def stop_after_the_bugs(case, *args):
        ran.append(case.bug)
        if ran == [bugs[0].bug, None]:
            raise KeyboardInterrupt
        return run_case(case, *args)

    monkeypatch.setattr(joint_distribution, "run_case", stop_after_the_bugs)
    with pytest.raises(KeyboardInterrupt):
        joint_distribution.main()
    with pytest.raises(SystemExit):
        joint_distribution.main()
    assert ran == [bugs[0].bug, None, None, None]
    data = json.loads(output.read_text())
    assert [result["name"] for result in data["results"]] == [case.name for case in bugs + right]
    assert output.with_suffix(".md").read_text().startswith(report(data))
