"""How the head that ships for SmolLM2-135M-Instruct was made: users' messages for the model to answer, and the runs.

A quarter each are requests for Python, word problems, tasks over a passage, and conversation. All of them come from
templates written for this purpose, drawn names and numbers, and the docstrings and help texts of Python's standard
library; none comes from a benchmark, nor is any modelled on a particular one of its prompts. The same seed gives the
same messages on the same version of Python. Openings are the first words of messages that the model finishes itself;
open talk is conversation of further kinds.

    python -m recipes.smollm2_head --out prompts.jsonl [--count 4096] [--seed 0] [--openings | --talk]

`head.sh` has the commands of a first head, made on one CPU core; `on_gpu.py` went on from there and made the one that
ships. `texts/` has some of the target's own text, for `mtp.py`.
"""

from recipes.smollm2_head.build import COUNT, build, build_talk
from recipes.smollm2_head.openings import build_openings

__all__ = ["COUNT", "build", "build_openings", "build_talk"]
