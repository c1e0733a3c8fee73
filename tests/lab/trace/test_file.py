"""Trace files: bounds, several calls, disks that are full; read whole, cut and damaged."""

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
        seen = 1  # The prompt's pass has decided a token.

        def propose(self, max_depth):
            assert len(read_trace(path).steps) == self.seen
            self.seen += 1
            return super().propose(max_depth)

    record(path, Looking())


def test_other_files_are_left_alone_and_missing_ones_named(tmp_path):
    with pytest.raises(TraceError, match="there is no trace"):
        read_trace(tmp_path / "none.jsonl")
    with pytest.raises(TraceError, match="it is a folder"):
        read_trace(tmp_path)
    path = tmp_path / "precious.txt"
    path.write_text("precious\n")
    with pytest.raises(TraceError, match="is not a trace"):
        record(path)
    assert path.read_text() == "precious\n"
    with pytest.warns(TreespecWarning, match="cannot be written"):  # A full disk does not end the decoding.
        TraceFile("/dev/full").begin({})


def test_wrong_options_are_named_and_a_path_is_enough(tmp_path):
    for path, options in ((tmp_path, {}), (tmp_path / "no" / "run", {}), (tmp_path / "a", {"max_steps": 0})):
        with pytest.raises(ConfigError):
            TraceFile(path, **options)
    with pytest.raises(ConfigError, match="path of its file"):
        treespec.TreeSpeculation(treespec.SuffixLookup(), trace=7)
    treespec.TreeSpeculation(treespec.SuffixLookup(), trace=str(tmp_path / "a.jsonl"))
    assert not list(tmp_path.iterdir()), "nothing is written before the first call"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("trace") / "run.jsonl"
    record(path, num_rows=2)
    return path.read_bytes()


def test_a_cut_last_line_is_left_out(whole, tmp_path):
    lines = whole.splitlines(keepends=True)
    path = tmp_path / "cut.jsonl"
    for end in (1, 20, len(lines[3]) - 1):
        path.write_bytes(b"".join(lines[:3]) + lines[3][:end])
        trace = read_trace(path)
        assert trace.is_cut
        assert trace.calls[0].end is None
        assert len(trace.steps) == 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data: b"", "is empty"),
        (lambda data: data[:30], "no complete line"),
        (lambda data: b"\x89PNG\xff\xfe", "not UTF-8"),
        (lambda data: b"hello\n", "line 1"),
        (lambda data: b"[1]\n", "not a JSON object"),
        (lambda data: data.replace(b"treespec-trace-2", b"treespec-trace-9"), "another format"),
        (lambda data: data.split(b"\n", 1)[1], "begins with 'step'"),
        (lambda data: data.replace(b'"tokens":', b'"tokenz":'), "lacks tokens"),
        (lambda data: data.replace(b'"parents":[-1', b'"parents":[5', 1), "line 2"),
        (lambda data: data.replace(b'"path":[0', b'"path":[99', 1), "path"),
        (lambda data: data.replace(b'"kind":"end"', b'"kind":"what"'), "unknown kind"),
        (lambda data: data.replace(b"\n", b"}\n", 3), "line 1"),
    ],
)
def test_what_is_wrong_is_named(whole, tmp_path, change, words):
    path = tmp_path / "wrong.jsonl"
    path.write_bytes(change(whole))
    with pytest.raises(TraceError, match=words):
        read_trace(path)
