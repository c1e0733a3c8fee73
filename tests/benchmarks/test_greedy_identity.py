"""The report on greedy identity."""

from benchmarks.greedy_identity import report, summary


def test_greedy_report_names_wrong_outputs():
    rows = [
        {"prompt": "a", "tokens": 4, "position": None, "gap": None, "is_excused": False},
        {"prompt": "b", "tokens": 4, "position": 2, "gap": 0.5, "is_excused": False},
    ]
    counters = {"num_target_passes": 5, "num_drafts": 5, "num_accepted_tokens": 3, "seconds": 1.0}
    batch = {"rows": rows, "num_accepted_at_rank": {"0": 2, "3": 1}, **counters}
    total = summary({"8/1/0": batch, "32/1/0": batch}, 8, 1)
    assert (total["num_identical"], total["num_accepted_beyond_rank_0"], total["num_prompts"]) == (1, 1, 2)
    data = {"is_right": False, "new_tokens": 4, "summary": [total], "seed": 0, "load_average": 0, "is_resumed": False}
    data |= {"load_average_after": 0, "command": "c", "processor": "p", "threads": 1, "versions": {}}
    assert "b, 8 nodes, batch 1: token 2, plain's top-two gap 5.0e-01, WRONG" in report(data, {"a": 0.1})
