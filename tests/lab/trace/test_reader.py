"""Reading traces, whole, cut and damaged."""

import pytest
from helpers.traced import record

from treespec.errors import TraceError
from treespec.lab.trace import read_trace


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
        (lambda data: data.replace(b"treespec-trace-1", b"treespec-trace-9"), "another format"),
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


def test_no_file(tmp_path):
    with pytest.raises(TraceError, match="there is no trace"):
        read_trace(tmp_path / "none.jsonl")
    with pytest.raises(TraceError, match="it is a folder"):
        read_trace(tmp_path)
