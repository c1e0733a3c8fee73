"""`progress=True`: a bar of the emitted tokens."""

import io

from helpers.tiny import identical, prompt, tiny_llama

import treespec
from treespec.hf.generation import progress


def test_tokens_of_all_rows_are_counted_where_a_bar_is_asked_for(monkeypatch):
    bars, make = [], progress.tqdm

    def keep(**options):  # Without a terminal.
        bars.append(make(file=io.StringIO(), **options))
        return bars[-1]

    monkeypatch.setattr(progress, "tqdm", keep)
    model = tiny_llama()
    identical(model, prompt(), treespec.TreeSpeculation(treespec.SuffixLookup()), max_new_tokens=3)
    assert bars == []
    speculation = treespec.TreeSpeculation(treespec.SuffixLookup(), tree=4, progress=True)
    identical(model, prompt(2), speculation, max_new_tokens=9)
    (bar,) = bars
    assert bar.n == bar.total == 9 * 2
    assert bar.postfix == f"{speculation.stats.block_efficiency:.2f} per pass"
