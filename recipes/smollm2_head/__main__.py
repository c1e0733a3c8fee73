"""Write messages to a file, one JSON object with the key "prompt" per line."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from recipes.smollm2_head import COUNT, build, build_openings


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m recipes.smollm2_head", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="the file to write, *.jsonl")
    parser.add_argument("--count", type=int, default=COUNT, help="how many messages")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--openings", action="store_true", help="only how messages begin")
    options = parser.parse_args()
    messages = (build_openings if options.openings else build)(options.count, options.seed)
    options.out.write_text("".join(json.dumps({"prompt": message}) + "\n" for message in messages), encoding="utf-8")
    print(f"{options.out}: {len(messages)} messages, {sum(map(len, messages)) / len(messages):.0f} characters each")


if __name__ == "__main__":
    main()
