"""A study's runs: block by block, in several processes, each block kept as soon as it is done."""

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from treespec.data.tensor_file import whole
from treespec.engine.stats import PHASES, SpeculationStats
from treespec.errors import ConfigError, RuleMismatchError, TreespecError, UnsupportedModeError
from treespec.hf.generation.speculation import TreeSpeculation
from treespec.hf.machine import OtherWork
from treespec.lab.measure.paired import Run, rotated, timed_call
from treespec.lab.measure.study.cells import PLAIN, Cell
from treespec.lab.measure.study.study import Block, Study
from treespec.lab.store import Store

Encode = Callable[[Any, Sequence[str]], Mapping[str, Tensor]]
"""A tokenizer and users' messages to arguments of `generate`, left-padded."""
Load = Callable[[Study], tuple[Any, Any, Callable[[Sequence[str]], list[Any]]]]
"""The study's model, its tokenizer, and what makes new drafters of names, see `named_drafters`."""


@dataclass
class Subject:
    """A process's model, tokenizer and drafters, on which it runs cells."""

    model: Any
    tokenizer: Any
    drafters: Callable[[Sequence[str]], list[Any]]
    encode: Encode
    new_tokens: int
    is_warm: bool = False

    @classmethod
    def of(cls, study: Study, load: Load, encode: Encode) -> Self:
        torch.set_num_threads(study.threads)
        return cls(*load(study), encode, study.new_tokens)


def run_study(
    study: Study, folder: Path, load: Load, encode: Encode, workers: int = 1, advance: Callable[[int], object] = print
) -> list[dict[str, Any]]:
    """The rows of all blocks; those that the folder has from an earlier run are not run again.

    Args:
        folder: gets `blocks-DIGEST.jsonl`, a line per block as soon as it is done, and `runs.parquet`.
        load, encode: importable functions, as other processes call them.
        workers: processes; each loads the model. Times are those of a machine that runs this many at once.
        advance: called with the number of blocks done.

    Raises `ConfigError`: pyarrow is missing.
    """
    arrow, parquet = _arrow()
    keys = {block: str(number) for number, block in enumerate(study.blocks())}
    store = Store(folder / f"blocks-{study.digest()}.jsonl")
    todo = [block for block, key in keys.items() if key not in store]
    advance(done := len(keys) - len(todo))
    run_all = _run_in_turn if workers == 1 or len(todo) < 2 else partial(_run_in_parallel, workers)
    for count, (block, found) in enumerate(run_all(todo, study, load, encode), start=done + 1):
        store.put(keys[block], found)
        advance(count)
    rows = [row for key in keys.values() for row in store[key]]
    with whole(folder / "runs.parquet") as scratch:
        parquet.write_table(arrow.Table.from_pylist(rows), scratch)
    return rows


def _arrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise ConfigError("studies need pyarrow: pip install 'treespec[study]'") from error
    return pyarrow, parquet


Done = Iterator[tuple[Block, list[dict[str, Any]]]]
"""Blocks with their rows."""


def _run_in_turn(todo: Sequence[Block], *start: Any) -> Done:
    if todo:
        subject = Subject.of(*start)
        yield from ((block, run_block(subject, block)) for block in todo)


def _run_in_parallel(workers: int, todo: Sequence[Block], *start: Any) -> Done:
    context = multiprocessing.get_context("spawn")  # Forked processes inherit torch's threads in an unusable state.
    before = set(multiprocessing.active_children())
    ignored = (signal.SIGINT, signal.SIG_IGN)  # At Ctrl-C this process ends the others.
    try:
        with ProcessPoolExecutor(workers, context, signal.signal, ignored) as pool:
            try:
                results = {pool.submit(_work, start, block): block for block in todo}
                for result in as_completed(results):
                    yield results[result], result.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                for process in set(multiprocessing.active_children()) - before:
                    process.terminate()
                raise
    except BrokenProcessPool as error:
        advice = "what is done is kept: run the command again, with fewer workers if memory was short"
        raise ConfigError(f"a process of the study ended before its time; {advice}") from error


_subjects: list[Subject] = []
"""The one of a process of its own."""


def _work(start: Any, block: Block) -> list[dict[str, Any]]:
    if not _subjects:
        _subjects.append(Subject.of(*start))
    return run_block(_subjects[0], block)


def run_block(subject: Subject, block: Block) -> list[dict[str, Any]]:
    """A row per cell, run in rotating order. A process first runs one of each policy and drafter, to warm up."""
    inputs = subject.encode(subject.tokenizer, block.prompts)
    inputs = {name: value.to(subject.model.device) for name, value in inputs.items()}
    if not subject.is_warm:
        for cell in {(cell.policy, cell.drafter): cell for cell in block.cells}.values():
            run_cell(subject, cell, inputs, block.number)
        subject.is_warm = True
    rows = {cell: run_cell(subject, cell, inputs, block.number) for cell in rotated(block.cells, block.number)}
    return [rows[cell] for cell in block.cells]


def run_cell(subject: Subject, cell: Cell, inputs: Mapping[str, Tensor], number: int) -> dict[str, Any]:
    """One call of `generate` with new drafters. A rule or a mode that does not go with the others is in `refused`."""
    arguments = {"max_new_tokens": subject.new_tokens, **cell.generate_arguments()}
    seed = 100_003 * cell.seed + number
    speculation, refused, work = None, None, OtherWork()
    torch.manual_seed(seed)
    if cell.policy != PLAIN:
        options = {"tree": cell.policy_object(), "verification": cell.rule, "seed": seed}
        speculation = TreeSpeculation(subject.drafters(cell.drafter.split(" + ")), **options)
        arguments["custom_generate"] = speculation
    try:
        counts = _counts(timed_call(subject.model, inputs, arguments), speculation)
    except (RuleMismatchError, UnsupportedModeError) as error:
        refused, counts = str(error), dict.fromkeys(_counts(Run([[0]], 0.0, 0), None))
    except TreespecError:
        raise
    except (ValueError, TypeError) as error:  # From transformers, for arguments that generate does not have.
        raise ConfigError(f"{cell} cannot be run: {error}") from error
    return {**asdict(cell), "prompt": number, **counts, "others_share": work.share(), "refused": refused}


def _counts(run: Run, speculation: TreeSpeculation | None) -> dict[str, Any]:
    """Tokens, passes, drafts and seconds by phase."""
    stats = SpeculationStats() if speculation is None else speculation.stats
    return {
        "num_tokens": run.num_tokens,
        "tokens_per_pass": 1.0 if speculation is None else stats.block_efficiency,
        "num_draft_tokens": stats.num_draft_tokens,
        "num_accepted_tokens": stats.num_accepted_tokens,
        **{f"{phase}_seconds": stats.seconds[phase] for phase in PHASES},
        "seconds": run.seconds,
        "ms_per_token": run.ms_per_token,
    }
