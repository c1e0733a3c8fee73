"""The snippets of docs/ run, and its tables agree with the code."""

import pkgutil
import re
import shlex
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from helpers.doc_snippets import DOCS, run_page
from helpers.slow_runs import SLOW_RUNS

import treespec
from treespec import policies
from treespec.commands import app
from treespec.errors import ConfigError, RuleMismatchError
from treespec.training import TrainingConfig, parse_settings
from treespec.tree import TokenTree
from treespec.verification import RULES, verify

ROOT = DOCS.parent
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
VERIFICATION = (DOCS / "verification.md").read_text()


def test_snippets_of_verification_run_in_order(capsys) -> None:
    names = run_page("verification.md")
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
    assert set(table) == set(RULES), "give a new rule its row in docs/verification.md"
    for name, is_lossless in table.items():
        assert is_lossless.startswith("yes") == RULES[name].is_lossless


@pytest.mark.parametrize("page", ["models.md", "hybrids.md"])
def test_snippets_of_models_run(page) -> None:
    assert run_page(page)["speculation"].stats.num_emitted_tokens > 0


def test_snippets_of_parts_run_in_order(capsys, monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    from example_models import tiny_model, tiny_tokenizer

    monkeypatch.setattr("treespec.hf.decoder.load_model", lambda name: tiny_model())
    monkeypatch.setattr("treespec.hf.decoder.load_tokenizer", lambda name: tiny_tokenizer())
    with warnings.catch_warnings():
        names = run_page("parts.md")
    assert (tmp_path / "tree.png").stat().st_size > 1000
    assert names["stats"].num_emitted_tokens == 32
    assert len(names["text"]) >= 24
    explanation = str(names["explain_round"]([0.3, 0.2, 0.1], [0.2, 0.4, 0.5], [0.9, 0.3, 0.6]))
    assert f"```text\n{explanation}\n```" in (DOCS / "parts.md").read_text()
    assert explanation in capsys.readouterr().out


def test_snippets_of_migrate_run_in_order() -> None:
    names = run_page("migrate.md")
    assert names["speculation"].stats.num_emitted_tokens == 24
    cells = re.findall(r"`((?:tree=)?(?:TreeSpeculation|Chain|treespec)[^`]*\))`", (DOCS / "migrate.md").read_text())
    scope = {**vars(treespec), **names, **vars(policies)}
    cells = [cell.removeprefix("tree=") for cell in cells if "..." not in cell and "folder" not in cell]
    assert len([eval(cell, scope) for cell in cells]) >= 5


def test_snippets_of_exactness_run_and_the_lossy_rules_are_named_as_such() -> None:
    assert run_page("exactness.md")["result"].error == 0
    sentence = (DOCS / "exactness.md").read_text().split("**Three rules are lossy**")[1].split("change the output")[0]
    assert set(re.findall(r"`(\w+)`", sentence)) == {name for name, rule in RULES.items() if not rule.is_lossless}


def test_snippets_of_research_run(capsys) -> None:
    run_page("research.md")
    rates = [[float(rate) for rate in line.split()[1:]] for line in capsys.readouterr().out.splitlines()]
    assert all(selected < sampled for selected, sampled in rates)


def test_every_method_of_from_config_has_its_row() -> None:
    section = (DOCS / "parts.md").read_text().split("## vLLM's words")[1].split("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    with pytest.raises(ConfigError) as caught:
        treespec.from_config({"method": None})
    methods = set(re.findall(r"'(\w+)'", str(caught.value)))
    assert {name for row in rows[1:] for name in re.findall(r"`(\w+)`", row)} == methods, "docs/parts.md"


def test_snippets_of_commands_run_in_order(capsys, monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    names = run_page("commands.md")
    assert names["speculation"].stats.num_emitted_tokens > 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["setting.json"]
    assert "Exact as far as tested" in capsys.readouterr().out


def test_snippets_of_diagnosis_run_in_order(monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    names = run_page("diagnosis.md")
    assert names["diagnosis"].num_tokens == 48
    causes = {line.split("`")[1] for line in (DOCS / "diagnosis.md").read_text().splitlines() if line.startswith("| `")}
    assert causes == set(SLOW_RUNS), "every cause has its row, and its prepared run"


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_a_page_opens_with_words_and_a_snippet(page: Path) -> None:
    """No table before it: a reader sees what the page is for, then what that looks like in use."""
    opening = re.search(r"\A# .*\n\n[\w`][^|]*?^```(\w+)$", page.read_text(), flags=re.MULTILINE)
    assert opening is not None
    assert opening[1] in ("python", "sh")


def commands_in(script: str) -> list[list[str]]:
    lines = script.replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("treespec ")]


def test_commands_have_the_options_that_are_named(monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("prompts", "openings", "sql"):
        (tmp_path / f"{name}.jsonl").touch()
    for name in ("question.txt", "prompts.txt", "setting.json", "study.yaml"):
        (tmp_path / name).touch()
    blocks = [block for page in PAGES for block in re.findall(r"```sh\n(.*?)```", page.read_text(), flags=re.DOTALL)]
    commands = commands_in("\n".join(blocks))
    recipe = commands_in((ROOT / "recipes" / "smollm2_head" / "head.sh").read_text())
    group: Any = typer.main.get_command(app)
    assert {name for name, *_ in commands} == set(group.commands) - {"export"}, "each has its lines on a page"
    assert [name for name, *_ in recipe] == ["write"] * 3 + ["train"] * 4
    for name, *arguments in (*commands, *recipe):
        command = group.commands[name]
        if hasattr(command, "commands"):  # trace record, ...
            name, *arguments = arguments
            command = command.commands[name]
        given = command.make_context(name, arguments).params
        TrainingConfig(**parse_settings(given.get("settings") or []))


def test_commands_in_the_text_exist_and_have_their_options() -> None:
    results = sorted((ROOT / "benchmarks" / "results").rglob("*.md"))
    text = "\n".join(page.read_text() for page in (*PAGES, ROOT / "CHANGELOG.md", *results))
    group: Any = typer.main.get_command(app)
    found = re.findall(r"`treespec ([a-z][a-z-]*)([^`]*)`", text)
    assert len(found) > 5
    for name, arguments in found:
        assert name in group.commands
        known = {option for parameter in group.commands[name].params for option in parameter.opts}
        assert set(re.findall(r"(?<!\S)--[a-z][a-z-]*", arguments)) <= {*known, "--help"}, name


def test_modules_and_functions_that_are_named_exist() -> None:
    text = "\n".join(page.read_text() for page in PAGES)
    names = set(re.findall(r"`(treespec(?:\.\w+)+)", text))
    assert len(names) > 20
    assert [name for name in names if not _exists(name)] == []


def _exists(name: str) -> bool:
    """Whether a dotted path is a module, or what a module holds."""
    with suppress(ImportError, AttributeError):
        return pkgutil.resolve_name(name) is not None
    return False


LINKING = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *(ROOT / "recipes").rglob("*.md")]
LINKING += sorted((ROOT / "benchmarks" / "results").rglob("*.md"))


@pytest.mark.parametrize("page", LINKING, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    links = [link for link in re.findall(r"\]\(([^)]+)\)", page.read_text()) if "://" not in link]
    broken = []
    for link in links:
        file, _, heading = link.partition("#")
        target = page.parent / file if file else page
        if not target.exists() or (heading and heading not in headings(target)):
            broken.append(link)
    assert broken == []


def headings(page: Path) -> set[str]:
    """The anchors that GitHub gives a page's headings."""
    lines = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in lines}
