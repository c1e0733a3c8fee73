"""The page of a trace: self-contained, and in a browser that has no window."""

import json
import re
import shutil
import subprocess
from html import unescape

import pytest
from helpers.traced import record
from helpers.written import TARGET, TOKENIZER

import treespec
from treespec.errors import TraceError
from treespec.lab.trace import Trace, read_trace
from treespec.viz import write_page

BROWSER = next(
    filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "google-chrome", "chrome"))), None
)
SETTINGS = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--virtual-time-budget=8000")


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    path = tmp_path_factory.mktemp("trace") / "run.jsonl"
    drafters = [treespec.TokenRecycling(), treespec.SuffixLookup()]
    record(path, drafters, model=TARGET, tokenizer=TOKENIZER, num_rows=2, max_new_tokens=40)
    return read_trace(path)


def data_of(page):
    return json.loads(re.search(r'id="trace">(.*?)</script>', page.read_text(), re.DOTALL).group(1))


def test_the_page_holds_the_trace_and_loads_nothing(trace, tmp_path):
    page = tmp_path / "run.html"
    write_page(trace, page)
    text, data = page.read_text(), data_of(page)
    assert not re.findall(
        r"""(?:src|href)\s*=\s*["']|@import|url\(|fetch\(|XMLHttpRequest""", text.split("<script", 1)[0]
    )
    assert "https://" not in re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    (call,) = data["calls"]
    assert len(call["steps"]) == len(trace.steps)
    assert call["steps"][5]["tokens"] == trace.steps[5].tokens
    assert sum(accepted for _, _, accepted in data["by_depth"]) == sum(len(step.accepted) for step in trace.steps)
    assert set(data["drafters"]) == {"TokenRecycling", "SuffixLookup"}


def test_text_that_looks_like_html_stays_text(trace, tmp_path):
    (call,) = trace.calls
    for text in ("</script><b>$data", "<!-- <script>"):
        call.texts[1] = text
        write_page(trace, tmp_path / "run.html")
        assert data_of(tmp_path / "run.html")["calls"][0]["texts"]["1"] == text
        assert text not in (tmp_path / "run.html").read_text()


def test_a_trace_without_steps_has_no_page(trace, tmp_path):
    with pytest.raises(TraceError, match="no step"):
        write_page(Trace("empty.jsonl", []), tmp_path / "run.html")
    assert not list(tmp_path.iterdir())


def rendered(page, keys="", fragment=""):
    """The page's elements after its scripts have run and keys were pressed."""
    if keys:
        # One key at a time: the page renders between them.
        presses = "".join(
            f"setTimeout(() => dispatchEvent(new KeyboardEvent('keydown', {{key: '{key}'}})), {100 * number});"
            for number, key in enumerate(keys.split(), start=1)
        )
        page.write_text(page.read_text().replace("</body>", f"<script>{presses}</script></body>"))
    command = [BROWSER, "--headless", *SETTINGS, "--dump-dom", f"file://{page}{fragment}"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    return unescape(re.sub(r"<script.*?</script>", "", found, flags=re.DOTALL))


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium")
def test_the_page_in_a_browser(trace, tmp_path):
    page = tmp_path / "run.html"
    write_page(trace, page)
    first = [step for step in trace.steps if step.row == 0]
    found = rendered(page, fragment="#theme=light")
    assert f"Step 1 of {len(first)}" in found
    assert 'data-theme="light"' in found
    assert found.count('<g class="node') == first[0].num_nodes + 1, "and the next token"
    assert found.count('data-step="') == sum(len(step.emitted) for step in first)
    for words in (
        "Acceptance by depth",
        "Acceptance by rank",
        "Where the time went",
        "accepted from SuffixLookup",
        "<canvas",
    ):
        assert words in found
    there = rendered(page, fragment="#step=4&theme=dark&text=1")
    assert "Step 4 of" in there
    assert 'data-theme="dark"' in there
    moved = rendered(page, "ArrowRight ArrowRight ArrowLeft PageDown t", "#theme=light")
    assert f"Step {min(12, len(first))} of" in moved
    assert 'data-theme="dark"' in moved
