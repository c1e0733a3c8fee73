"""Write messages to a file, one JSON object with the key "prompt" per line."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from recipes.smollm2_head import COUNT, build, build_openings, build_talk


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m recipes.smollm2_head", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="the file to write, *.jsonl")
    parser.add_argument("--count", type=int, default=COUNT, help="how many messages")
    parser.add_argument("--seed", type=int, default=0)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--openings", action="store_true", help="only how messages begin")
    which.add_argument("--talk", action="store_true", help="open talk: roles, stories, letters, opinions, advice")
    options = parser.parse_args()
    make = build_openings if options.openings else build_talk if options.talk else build
    messages = make(options.count, options.seed)
    options.out.write_text("".join(json.dumps({"prompt": message}) + "\n" for message in messages), encoding="utf-8")
    print(f"{options.out}: {len(messages)} messages, {sum(map(len, messages)) / len(messages):.0f} characters each")


if __name__ == "__main__":
    main()
