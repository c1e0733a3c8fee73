"""Users' messages for a model to answer: what draft heads are trained on, besides text from bare user turns.

A quarter each are requests for Python, word problems, tasks over a passage, and conversation. All of them come from
templates written for this purpose, drawn names and numbers, and the docstrings and help texts of Python's standard
library; none comes from a benchmark, nor is any modelled on a particular one of its prompts. The same seed gives the
same messages on the same version of Python. Openings are the first words of messages that the model finishes itself.

    python -m recipes.smollm2_head --out prompts.jsonl [--count 4096] [--seed 0] [--openings]
    treespec write MODEL --prompts prompts.jsonl --tokens 1500000 --max-length 512 --out FOLDER
    treespec write MODEL --openings openings.jsonl --tokens 1500000 --max-message 160 --max-length 512 --out OTHER
"""

from recipes.smollm2_head.build import COUNT, build
from recipes.smollm2_head.openings import build_openings

__all__ = ["COUNT", "build", "build_openings"]
