"""One cell of the matrix, and which cells are run."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import cycle, product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from helpers.matrix.axes import ADAPTERS, CONFIGS, CONSTRAINTS, PACKAGES, PROMPTS, WEIGHTS, adapt, save_model, takes
from torch import Tensor, nn

from treespec import SuffixLookup, TokenRecycling, TreespecError, TreeSpeculation

IDENTICAL, TIE, REFUSED, PACKAGE, DIFFERENT = "identical", "own tie", "refused by name", "fails plainly", "DIFFERENT"
NUM_NEW, NUM_PERTURBED = 12, 3


class Cell(NamedTuple):
    """Names on the five axes."""

    model: str
    weights: str
    adapter: str
    prompt: str
    constraint: str


class Outcome(NamedTuple):
    """One of the words above, and the message or the numbers behind it."""

    word: str
    detail: str = ""


Axes = Mapping[str, Sequence[str]]
ALL: Axes = {
    "model": list(CONFIGS),
    "weights": list(WEIGHTS),
    "adapter": list(ADAPTERS),
    "prompt": list(PROMPTS),
    "constraint": list(CONSTRAINTS),
}


def installed(axes: Axes = ALL) -> Axes:
    """The axes without what needs a package that is not there."""
    has = {name: find_spec(package) is not None for name, package in PACKAGES.items()}
    return {**axes, "constraint": [name for name in axes["constraint"] if has.get(name, True)]}


def choose(axes: Axes, per_model: int | None, seed: int = 0) -> dict[tuple[str, str, str], list[Cell]]:
    """Cells by (model, weights, adapter), at random `per_model` of each; None takes all.

    Every pair of prompt and constraint comes equally often: they are dealt out in turns. What is always refused stands
    with one other name only.
    """
    pairs = [
        (prompt, constraint)
        for prompt, constraint in product(axes["prompt"], axes["constraint"])
        if (prompt != "embeddings" or constraint == "none")
        and (constraint != "xgrammar's processor" or prompt == "one text")
    ]
    random.Random(seed).shuffle(pairs)
    deck = cycle(pairs)
    found = {}
    for group in product(axes["model"], axes["weights"], axes["adapter"]):
        fitting = [pair for pair in pairs if takes(group[0], pair[0])]
        dealt = fitting if per_model is None else [next(p for p in deck if p in fitting) for _ in range(per_model)]
        found[group] = [Cell(*group, *pair) for pair in dict.fromkeys(dealt)]
    return found


def run_group(group: tuple[str, str, str], cells: Sequence[Cell], folder: Path) -> Iterator[tuple[Cell, Outcome]]:
    """The cells of one model; `folder` holds the models that were saved before."""
    name, weights, adapter = group
    path = folder / name.replace(" ", "-")
    if not path.is_dir():
        save_model(name, path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = adapt(WEIGHTS[weights](path), adapter)
    except Exception as error:
        yield from ((cell, Outcome(PACKAGE, _line(error))) for cell in cells)
        return
    for cell in cells:
        yield cell, run(model, cell)


def run(model: Any, cell: Cell) -> Outcome:
    """Greedy decoding of a cell by trees compared with plain `generate`."""
    settings = {"max_new_tokens": NUM_NEW, "do_sample": False, "return_dict_in_generate": True, "output_scores": True}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            plain = model.generate(**PROMPTS[cell.prompt](model), **settings, **CONSTRAINTS[cell.constraint]())
        except Exception as error:
            return Outcome(PACKAGE, _line(error))
        options = PROMPTS[cell.prompt](model) | settings | CONSTRAINTS[cell.constraint]()
        speculation = TreeSpeculation([TokenRecycling(), SuffixLookup()], tree=8)
        try:
            out = model.generate(**options, custom_generate=speculation)
        except TreespecError as error:
            return Outcome(REFUSED, _line(error))
        if torch.equal(out.sequences, plain.sequences):
            return Outcome(IDENTICAL)
        perturbed = [_perturbed(model, cell, settings, seed) for seed in range(NUM_PERTURBED)]
    return _explained(out, plain, perturbed)


def _perturbed(model: Any, cell: Cell, settings: dict[str, Any], seed: int) -> Any:
    with _last_bits_changed(model, seed):
        return model.generate(**PROMPTS[cell.prompt](model), **settings, **CONSTRAINTS[cell.constraint]())


@contextmanager
def _last_bits_changed(model: Any, seed: int) -> Iterator[None]:
    """Embeddings changed by rounding: what plain decoding makes of it is the model's own noise."""
    generator = torch.Generator().manual_seed(seed)

    def change(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        noise = torch.randn(output.shape, generator=generator)
        return (output * (1 + torch.finfo(output.dtype).eps * noise)).to(output.dtype)

    handle = model.get_input_embeddings().register_forward_hook(change)
    try:
        yield
    finally:
        handle.remove()


def _explained(out: Any, plain: Any, perturbed: Sequence[Any]) -> Outcome:
    """A tie where the gap of plain's two best scores is within the difference that rounding makes to plain itself."""
    start = plain.sequences.shape[1] - len(plain.scores)
    width = min(out.sequences.shape[1], plain.sequences.shape[1])
    rows = (out.sequences[:, :width] != plain.sequences[:, :width]).any(1).nonzero().flatten().tolist()
    for row in rows:
        position = int((out.sequences[row, :width] != plain.sequences[row, :width]).nonzero()[0]) - start
        scores = plain.scores[position][row].float()
        best = scores.topk(2).values
        gap, noise = float(best[0] - best[1]), 0.0
        for other in perturbed:
            before = slice(start, start + position)
            if not torch.equal(other.sequences[row, before], plain.sequences[row, before]):
                noise = float("inf")
                continue
            difference = other.scores[position][row].float() - scores
            noise = max(noise, float(difference[difference.isfinite()].abs().max()))
        if gap > 2 * noise:
            return Outcome(DIFFERENT, f"row {row}, token {position}: gap {gap:.2g}, noise {noise:.2g}")
    return Outcome(TIE) if rows else Outcome(DIFFERENT, "one text ends earlier")  # After a tie either may end first.


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:160]}"
