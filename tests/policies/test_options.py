"""Options that no policy can have, each with its error."""

import numpy as np
import pytest

from treespec.errors import ConfigError, InvalidTreeError
from treespec.literature import (
    AdaptiveChain,
    LowConfidence,
    SpecExec,
    StochasticBeam,
    Truncated,
    delayed_branching,
    eagle2,
    opt_tree,
)
from treespec.policies import BestFirst, Chain, Control, KAry, Paths, Sequoia, as_policy, optimal_paths
from treespec.tree import IID, MIXED

POSITIVE, GAIN, SHARE, TABLE = "positive int", "min_gain must not be negative", r"lie in \(0, 1\]", "acceptance"
CHILDREN = "children must be one of"
BAD = [
    (as_policy, (BestFirst,), "tree policy"),
    (as_policy, (True,), "tree policy"),
    (as_policy, (0,), POSITIVE),
    (lambda: Control(max_nodes=0), (), POSITIVE),
    (lambda: Control(max_latency_ms=0.0), (), "max_latency_ms must be"),
    *((Control, (64, None, None, times), "pass_ms") for times in ({0: 1.0}, {1: -1.0}, {1: np.inf}, {}, [1.0, 2.0])),
    (Chain, (0,), "k must be a positive int"),
    (Chain, (2, "best"), CHILDREN),
    (Chain, (3, "auto", 0.5), "stop must be a rule"),
    (AdaptiveChain, (9, 8), "must not exceed max_k"),
    (AdaptiveChain, (0,), POSITIVE),
    *((LowConfidence, (threshold,), SHARE) for threshold in (0.0, float("nan"), "half", 1.5)),
    (BestFirst, (4, MIXED), CHILDREN),
    (lambda: BestFirst(4, ranking="best"), (), "ranking must be"),
    (lambda: BestFirst(6, min_gain=0.1), (), "min_gain needs children='selected'"),
    (opt_tree, (4, -0.1), GAIN),
    (opt_tree, (4, "0.1"), GAIN),
    (eagle2, (4, 0), POSITIVE),
    *((make, (1_000_000,), "num_nodes must be at most 8192, got 1000000") for make in (as_policy, BestFirst, SpecExec)),
    (SpecExec, (0,), POSITIVE),
    (SpecExec, (4, 0), POSITIVE),
    (SpecExec, (4, 1, 0), POSITIVE),
    (KAry, ((),), "branching must be a sequence"),
    (KAry, ((10,) * 9,), "more than 4096"),
    (KAry, ("22",), "branching must be a sequence"),
    (KAry, ((2, 0),), POSITIVE),
    (delayed_branching, (2, 3), "branching must be a sequence"),
    (delayed_branching, (-1, (2,)), POSITIVE),
    (StochasticBeam, (0, 1), POSITIVE),
    (StochasticBeam, (1, 0), POSITIVE),
    (StochasticBeam, (2, 2, IID), CHILDREN),
    (Truncated, (KAry((2,)), 0), "num_tokens"),
    (Truncated, (16,), "policy"),
    (Truncated, (Control(),), "not a Control"),
    (optimal_paths, ([[0.2, 0.4]], 4), TABLE),
    (optimal_paths, ([1.5], 4), TABLE),
    (optimal_paths, ([float("nan")], 4), TABLE),
    (optimal_paths, ([0.5], 0), POSITIVE),
    (optimal_paths, ([0.5], 3, 0), POSITIVE),
    *((optimal_paths, (table, 4), "expected acceptance") for table in (None, 0.5, [[0.5], 0.3], ["ab"])),
    (Sequoia, ([0.5], 1), "no tree of 1 nodes"),
    (Sequoia, ([[0.0, 0.0]], 5), "no tree of 5 nodes"),
    (Sequoia, ([0.5], 3, "best"), CHILDREN),
]


@pytest.mark.parametrize(("make", "options", "words"), BAD)
def test_bad_options(make, options, words):
    with pytest.raises(ConfigError, match=words):
        make(*options)


@pytest.mark.parametrize(
    ("paths", "words"), [("[(0,), (0, ", "rank paths"), ([(0, 0)], "parent"), ([(1,)], "sibling"), ([], "no rank path")]
)
def test_bad_paths(paths, words):
    for make in (Paths, as_policy):
        with pytest.raises(InvalidTreeError, match=words):
            make(paths)
