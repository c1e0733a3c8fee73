"""Prints what the exact tests counted: cases come back with the reports, so worker processes may run them."""

from collections import Counter


def pytest_terminal_summary(terminalreporter) -> None:
    properties = [
        item
        for reports in terminalreporter.stats.values()
        for report in reports
        for item in getattr(report, "user_properties", ())
        if getattr(report, "when", "call") == "call"
    ]
    counts = Counter(value for name, value in properties if name == "exact_case")
    tables = sorted(value for name, value in properties if name == "table")
    if counts:
        by_rule = Counter()
        for (rule, *_), number in counts.items():
            by_rule[rule] += number
        listed = ", ".join(f"{rule} {number}" for rule, number in sorted(by_rule.items()))
        terminalreporter.write_line(
            f"exact distributions enumerated: {counts.total()} (rule, distribution, shape) cases ({listed})"
        )
    for table in tables:
        terminalreporter.write_line(table)
