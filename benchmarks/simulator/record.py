"""Record what the parts of the merged drafter propose at every position of the target's texts."""

from __future__ import annotations

import argparse
from typing import Any

import torch
from rich.console import Console

from benchmarks.common.drafters import fastest_head, warm_start
from benchmarks.common.prompts import Prompt, encode
from treespec import BestFirst, TreeSpeculation, optimize
from treespec.drafters import Merge
from treespec.drafters.merge.merge import read_trees
from treespec.hf.loading import smollm2
from treespec.protocols import Session
from treespec.tree import ROOT_PARENT, HostTree, TreeBatch

NUM_RECORDED = 32
"""Nodes of the recorded trees."""


class Recorder(Merge):
    """Keeps the trees of its parts, by step and part.

    It proposes the root alone: every position is seen, and no node of a large tree teaches token recycling.
    """

    def start(self, session: Session) -> None:
        super().start(session)
        self.trees: list[list[HostTree]] = []

    def propose(self, max_depth: int) -> TreeBatch:
        parts = [read_trees(drafter, drafter.propose(max_depth))[0] for drafter in self._drafters]
        self.trees.append(parts)
        root = parts[0].tokens[0]
        return TreeBatch.from_host_trees([HostTree([root], [ROOT_PARENT], [1.0])])


def record(args: argparse.Namespace, prompts: list[Prompt], console: Console) -> list[dict[str, Any]]:
    """By prompt: `prompt` and `text`, token ids, and `trees` by position in the text and part.

    The parts are the shipped head, warm recycling and warm suffix lookup, see `replay.HEAD` and so on.
    """
    loaded, tokenizer = smollm2.load(say=console.print)
    model: Any = loaded
    head = fastest_head(model)
    recorder = Recorder([head, *warm_start().drafters()])
    speculation = TreeSpeculation(recorder, tree=BestFirst(NUM_RECORDED, children="selected"))
    sampling = {"do_sample": True, "temperature": args.temperature, "top_k": 0}
    options = sampling if args.temperature else {"do_sample": False}
    found = []
    with optimize(model):
        for number, prompt in enumerate(prompts):
            torch.manual_seed(number)
            inputs = encode(tokenizer, [prompt])
            ids = model.generate(**inputs, **options, max_new_tokens=args.new_tokens, custom_generate=speculation)[0]
            start = inputs["input_ids"].shape[1]
            trees = [[tuple(tree) for tree in parts] for parts in recorder.trees]
            found.append({"prompt": ids[:start].tolist(), "text": ids[start:].tolist(), "trees": trees})
            console.print(f"{prompt.name}: {len(trees)} positions")
    return found
