"""Trace files: bounds, several calls, disks that are full."""

import pytest
from helpers.traced import record

import treespec
from treespec.errors import ConfigError, TraceError, TreespecWarning
from treespec.lab.trace import TraceFile, read_trace


def test_calls_are_appended_also_after_a_cut_line(tmp_path):
    path = tmp_path / "run.jsonl"
    record(path)
    with path.open("a") as file:
        file.write('{"kind":"call","for')
    _, _, trace = record(path)
    assert [call.end for call in trace.calls] == ["complete", "complete"]
    assert [call.about["call"] for call in trace.calls] == [0, 1]


@pytest.mark.parametrize(("bounds", "words"), [({"max_steps": 3}, "max_steps=3"), ({"max_megabytes": 1}, "max_meg")])
def test_a_bounded_trace_says_so(tmp_path, bounds, words):
    file = TraceFile(tmp_path / "run.jsonl", has_distributions=True, **bounds)
    file._num_bytes = 999_000
    out, speculation, trace = record(file)
    assert trace.calls[0].end.startswith(words)
    assert 0 < len(trace.steps) < len(speculation.steps)
    assert len(list((tmp_path / "run.jsonl.distributions").iterdir())) == len(trace.steps)
    assert out.shape[1] == 28, "decoding goes on"


def test_every_step_is_in_the_file_before_the_next(tmp_path):
    path = tmp_path / "run.jsonl"

    class Looking(treespec.SuffixLookup):
        seen = 0

        def propose(self, max_depth):
            assert len(read_trace(path).steps) == self.seen
            self.seen += 1
            return super().propose(max_depth)

    record(path, Looking())


def test_a_full_disk_ends_the_trace_and_not_the_decoding(tmp_path):
    with pytest.warns(TreespecWarning, match="cannot be written"):
        TraceFile("/dev/full").begin({})


def test_other_files_are_left_alone(tmp_path):
    path = tmp_path / "precious.txt"
    path.write_text("precious\n")
    with pytest.raises(TraceError, match="is not a trace"):
        record(path)
    assert path.read_text() == "precious\n"


@pytest.mark.parametrize(
    "wrong",
    [lambda p: TraceFile(p), lambda p: TraceFile(p / "no" / "run"), lambda p: TraceFile(p / "a", max_steps=0)],
)
def test_wrong_options_are_named(tmp_path, wrong):
    with pytest.raises(ConfigError):
        wrong(tmp_path)
    with pytest.raises(ConfigError, match="path of its file"):
        treespec.TreeSpeculation(treespec.SuffixLookup(), trace=7)


def test_a_path_is_enough(tmp_path):
    treespec.TreeSpeculation(treespec.SuffixLookup(), trace=str(tmp_path / "a.jsonl"))
    assert not list(tmp_path.iterdir()), "nothing is written before the first call"
