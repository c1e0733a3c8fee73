"""A self-test's findings, for people (text, Markdown) and for programs (JSON)."""

import json
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from treespec.errors import ConfigError
from treespec.lab.tables import markdown_table

OK, WARNING, FAILED, SKIPPED = "ok", "warning", "FAILED", "skipped"
Outcome = tuple[str, str]
"""One of them, and what was seen."""


@dataclass(frozen=True)
class Finding:
    """One result: the check's name, its outcome (ok, warning, FAILED or skipped), what was seen, and the seconds."""

    name: str
    outcome: str
    text: str
    seconds: float = 0.0


@dataclass(frozen=True)
class CheckReport:
    """All findings of one self-test, and what was tested (`about`: model, drafter, versions, seed)."""

    about: dict[str, Any]
    findings: tuple[Finding, ...]

    @property
    def is_right(self) -> bool:
        """Whether no check failed; warnings and skipped checks do not count."""
        return all(finding.outcome != FAILED for finding in self.findings)

    @property
    def failures(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.outcome == FAILED]

    @property
    def verdict(self) -> str:
        """One sentence."""
        count = Counter(finding.outcome for finding in self.findings)
        if self.is_right:
            return f"Exact as far as tested: {count[OK]} checks passed, {count[WARNING]} warnings."
        names = ", ".join(finding.name for finding in self.failures)
        return f"NOT EXACT: {count[FAILED]} checks failed ({names}); {count[OK]} passed."

    def as_dict(self) -> dict[str, Any]:
        """Plain data, as the JSON file holds it."""
        findings = [asdict(finding) for finding in self.findings]
        return {"is_right": self.is_right, "verdict": self.verdict, "about": self.about, "findings": findings}

    def markdown(self) -> str:
        about = "\n".join(f"- {name}: {value}" for name, value in self.about.items())
        rows = [[f.name, f.outcome, f.text.replace("|", "/"), f"{f.seconds:.1f}"] for f in self.findings]
        table = markdown_table(["check", "outcome", "seen", "seconds"], rows)
        return f"# Self-test of treespec\n\n{self.verdict}\n\n{about}\n\n{table}\n"

    def __str__(self) -> str:
        lines = [f"{f.outcome:8}{f.name}: {f.text}" for f in self.findings]
        return "\n".join([*lines, self.verdict])

    def save(self, path: str | Path) -> None:
        """Write *.md or *.json. Raises `ConfigError`: any other name."""
        path = Path(path)
        check_report_path(path)
        path.write_text(json.dumps(self.as_dict(), indent=1) + "\n" if path.suffix == ".json" else self.markdown())


def check_report_path(path: Path) -> None:
    """Raise `ConfigError` for a report that is neither Markdown nor JSON, before anything is run for it."""
    if path.suffix not in (".md", ".json"):
        raise ConfigError(f"the report must be a *.md or *.json file, got {path}")
