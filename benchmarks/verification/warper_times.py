"""What the warpers that sort cost per node on a CPU: transformers' own and treespec's, whose outputs are the same.

Scores are a random spread with a few likely tokens, as a model's: normal with a standard deviation of 2, and 50 tokens
raised by 8 to 14. Every cell is the median of 15 calls over one node.

    python -m benchmarks.verification.warper_times
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch import Tensor
from transformers.generation.logits_process import TopPLogitsWarper, TypicalLogitsWarper

from benchmarks.common.settings import RESULTS, markdown_table, parser, settings, settings_lines, write_json
from treespec.hf.generation.fast_warpers import fast

WARPERS = {
    "top_p=0.9": TopPLogitsWarper(0.9),
    "top_p=0.99": TopPLogitsWarper(0.99),
    "typical_p=0.2": TypicalLogitsWarper(0.2),
    "typical_p=0.9": TypicalLogitsWarper(0.9),
}
VOCABULARIES = (49_152, 128_256, 262_144)
ROUNDS = 15


def random_scores(size: int, seed: int) -> Tensor:
    """Scores [1, V]."""
    generator = torch.Generator().manual_seed(seed)
    scores = 2 * torch.randn(1, size, generator=generator)
    scores[0, :50] += 8 + 6 * torch.rand(50, generator=generator)
    return scores


def milliseconds(call: Callable[[], Any]) -> float:
    times = []
    for _ in range(ROUNDS + 2):
        start = time.perf_counter()
        call()
        times.append(1e3 * (time.perf_counter() - start))
    return round(median(times[2:]), 3)


def measure(seed: int) -> list[dict[str, Any]]:
    cells = []
    for size in VOCABULARIES:
        scores, ids = random_scores(size, seed), torch.zeros(1, 1, dtype=torch.int64)
        for name, warper in WARPERS.items():
            faster = fast(warper)
            cells.append(
                {
                    "warper": name,
                    "vocabulary": size,
                    "kept": int(warper(ids, scores).isfinite().sum()),  # pyright: ignore[reportArgumentType]
                    "is_same": torch.equal(warper(ids, scores), faster(ids, scores)),  # pyright: ignore[reportArgumentType]
                    "library_ms": milliseconds(lambda warper=warper: warper(ids, scores)),  # noqa: B023
                    "treespec_ms": milliseconds(lambda faster=faster: faster(ids, scores)),  # noqa: B023
                }
            )
    return cells


def report(data: dict[str, Any]) -> str:
    about = (__doc__ or "").split("\n\n")[1].replace("\n", " ")
    rows = [
        [
            cell["warper"],
            f"{cell['vocabulary']:,}",
            f"{cell['kept']:,}",
            f"{cell['library_ms']:.2f}",
            f"{cell['treespec_ms']:.2f}",
            f"{cell['library_ms'] / cell['treespec_ms']:.1f}",
            "yes" if cell["is_same"] else "no",
        ]
        for cell in data["results"]
    ]
    header = ["warper", "vocabulary", "kept tokens", "transformers, ms", "treespec, ms", "times faster", "same output"]
    load = f"Load {data['load_average']}."
    lines = ["# Warpers that sort, one node", "", about, "", markdown_table(header, rows), load, settings_lines(data)]
    return "\n".join(lines)


def main() -> None:
    arguments = parser(__doc__ or "", threads=1).parse_args()
    torch.set_num_threads(arguments.threads)
    data = settings(seed=arguments.seed) | {"results": measure(arguments.seed)}
    write_json(RESULTS / "verification" / "warper_times.json", data)
    (RESULTS / "verification" / "warper_times.md").write_text(report(data))
    print(report(data))


if __name__ == "__main__":
    main()
