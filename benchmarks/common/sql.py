"""Requests for SQL over small tables, as one kind of traffic; no text that the shipped head was trained on is of it.

python -m benchmarks.common.sql --out sql.jsonl --count 100
"""

from __future__ import annotations

import argparse
import json
from itertools import product
from pathlib import Path
from random import Random

TABLES = {
    "orders": "id, customer_id, product, amount, ordered_at",
    "employees": "id, name, department, salary, hired_at",
    "flights": "number, origin, destination, departs_at, seats",
    "books": "id, title, author, year, price",
    "patients": "id, name, born_at, ward, doctor_id",
    "matches": "id, home_team, guest_team, home_goals, guest_goals, played_at",
    "sensors": "id, room, kind, value, read_at",
    "songs": "id, title, artist, album, seconds",
    "invoices": "number, client, total, issued_at, paid_at",
    "students": "id, name, course, grade, year",
}
QUESTIONS = (
    "Write an SQL query that returns the ten rows with the largest {last}.",
    "Write an SQL query that counts the rows for every {third}, most frequent first.",
    "Write an SQL statement that creates the table with suitable types and a primary key.",
    "Write three INSERT statements with example data.",
    "Write an SQL query that finds rows whose {second} occurs more than once.",
    "Write an UPDATE statement that changes {third} where {first} is 7, and explain it.",
    "Write an SQL view of the rows of the last thirty days.",
    "Explain which index helps a query that filters by {third} and sorts by {last}, and write the statement.",
    "Write a DELETE statement for rows without {second}, inside a transaction.",
    "Write an SQL query with a window function that ranks the rows within every {third} by {last}.",
)


def sql_prompts(count: int, seed: int = 0) -> list[str]:
    """So many different requests, at most one for each table and question."""
    pairs = list(product(TABLES.items(), QUESTIONS))
    Random(seed).shuffle(pairs)
    prompts = []
    for (table, columns), question in pairs[:count]:
        first, second, third, *_, last = columns.split(", ")
        asked = question.format(first=first, second=second, third=third, last=last)
        prompts.append(f"There is a table {table}({columns}). {asked}")
    return prompts


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.common.sql", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="the file to write, *.jsonl")
    parser.add_argument("--count", type=int, default=100)
    options = parser.parse_args()
    lines = [json.dumps({"prompt": prompt}) + "\n" for prompt in sql_prompts(options.count)]
    options.out.write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
