"""The snippets of docs/ run, and its tables agree with the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from treespec.errors import RuleMismatchError
from treespec.tree import TokenTree
from treespec.verification import RULES, verify

DOCS = Path(__file__).parent.parent / "docs"
VERIFICATION = (DOCS / "verification.md").read_text()


def test_snippets_of_verification_run_in_order(capsys) -> None:
    snippets = re.findall(r"```python\n(.*?)```", VERIFICATION, flags=re.DOTALL)
    assert len(snippets) == 4
    names: dict = {}
    for snippet in snippets:
        exec(compile(snippet, "docs/verification.md", "exec"), names)
    assert names["result"].error == 0
    assert {case.shape for case in names["results"]} >= {"chain"}
    assert max(result.error for result in names["results"].values()) <= 1e-12
    rule, sampled = names["MyChainRule"](), TokenTree.chain([0, 1, 2], torch.full((2, 3), 1 / 3))
    verify(sampled, torch.full((3, 3), 1 / 3), rule)
    for refused in (TokenTree.chain([0, 1, 2]), TokenTree.from_paths([(0,), (1,)], [0, 1, 2])):
        with pytest.raises(RuleMismatchError, match="my_chain_rule"):
            verify(refused, torch.full((3, 3), 1 / 3), rule)
    lines = capsys.readouterr().out.splitlines()
    assert float(lines[-1]) > 0.01


def test_every_rule_has_its_row_and_says_whether_it_is_lossless() -> None:
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in VERIFICATION.splitlines()]
    table = {row[0].strip("`"): row[2] for row in rows if len(row) == 5 and row[0].startswith("`")}
    assert set(table) == set(RULES)
    for name, is_lossless in table.items():
        assert is_lossless.startswith("yes") == RULES[name].is_lossless


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_files_linked_exist(page: Path) -> None:
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", page.read_text()) if "://" not in link]
    assert [link for link in links if not (page.parent / link).exists()] == []
