"""`treespec bench`: plain, chain, tree and auto on your model and prompts, paired."""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
import typer
from rich.console import Console

from treespec.commands.console import (
    CONSOLE,
    SeedOption,
    ThreadsOption,
    check_out_folder,
    command_line,
    progress_bar,
    use_threads,
)
from treespec.commands.generate import encode
from treespec.commands.models import (
    ConfigOption,
    DeviceOption,
    DrafterOption,
    DtypeOption,
    Loaded,
    ModelArgument,
    PackOption,
    RuleOption,
    SettingOption,
    load,
    speculation_of,
)
from treespec.commands.tables import prompt_table, summary_table
from treespec.commands.writing import PromptsOption
from treespec.errors import ConfigError
from treespec.hf.machine import OtherWork, is_busy
from treespec.lab.measure.paired import (
    PLAIN,
    Bench,
    Contestant,
    Runs,
    measure,
    ms_per_token,
    num_decodings,
    raw_numbers,
    speeds,
    tokens_per_pass,
)
from treespec.lab.selftest.agreement import Agreement
from treespec.policies import Chain
from treespec.training.text.chat import read_prompts

if TYPE_CHECKING:
    from treespec.viz import Measured

EXAMPLES = """Examples:

treespec bench

treespec bench ./my-model --prompts prompts.txt --drafter ./my-draft-model --tree 8 --tree 16 --out results"""
NewTokensOption = Annotated[
    int, typer.Option("--new-tokens", "--max-new-tokens", min=2, help="Of each answer, at most.")
]
PROMPTS = (
    "What should I see on a first visit to Lisbon? Give me a short list with one sentence each.",
    "Write a Python function that returns the n-th Fibonacci number, with a docstring and two examples.",
    "A baker sells 12 loaves at 3 dollars each and 20 rolls at 50 cents each. How much does she earn?",
    "Write a short story about a clockmaker who finds a watch that runs backwards.",
)


def run(
    model: ModelArgument = None,
    prompts: PromptsOption = None,
    new_tokens: NewTokensOption = 48,
    rounds: Annotated[int, typer.Option(min=1, help="Of all prompts.")] = 3,
    chain: Annotated[list[int] | None, typer.Option(min=1, help="Lengths of chains; default: 4.")] = None,
    tree: Annotated[list[int] | None, typer.Option(min=2, help="Budgets of trees; default: 8.")] = None,
    auto: Annotated[bool, typer.Option(help="Measure tree='auto' too.")] = True,
    drafter: DrafterOption = None,
    rule: RuleOption = "auto",
    speculative_config: ConfigOption = None,
    setting: SettingOption = None,
    out: Annotated[Path | None, typer.Option(file_okay=False, help="A folder for results and picture.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
    dtype: DtypeOption = None,
    device: DeviceOption = None,
    pack: PackOption = True,
    seed: SeedOption = 0,
    threads: ThreadsOption = None,
) -> None:
    """Compare plain greedy decoding with chains, trees and tree="auto" on your prompts.

    Every prompt is decoded by all in turn, so that ratios are paired; all outputs are compared with plain ones. Exit
    code 0: all outputs are plain's, near-ties aside; 1: an output differs; 2: wrong use, or a failed load.
    """
    use_threads(threads)
    if speculative_config is not None and (drafter or chain or tree):
        raise ConfigError("--speculative-config names drafter and tree: leave out --drafter, --chain and --tree")
    if setting is not None and speculative_config is not None:
        raise ConfigError("give --setting or --speculative-config, got both")
    if out is not None:
        check_out_folder(out)
    texts = PROMPTS if prompts is None else read_prompts(prompts)
    loaded = load(model, dtype, device, is_packed=pack)
    is_given = speculative_config is not None
    shapes = {"given configuration": "auto"} if is_given else _shapes(chain or [4], tree or [8], auto)
    ways = {n: (drafter, shape, rule, speculative_config) for n, shape in shapes.items()}
    ways |= {} if setting is None else {f"setting {setting.name}": (None, "auto", "auto", None, setting)}
    contestants, work = _contestants(loaded, ways, seed), OtherWork()
    runs, agreements = _measure(Bench(loaded.model, prompt_inputs(loaded, texts), new_tokens), contestants, rounds)
    found = {"command": command_line(), "model": loaded.name, "rounds": rounds, "new_tokens": new_tokens}
    found["others_share"] = share = work.share()
    if is_busy(share):
        CONSOLE.print(f"treespec: warning: other processes used {share:.0%} of the processors meanwhile", markup=False)
    found["runs"] = raw_numbers(runs, agreements)
    if out is not None:
        _save(found, runs, out, loaded.name)
    if as_json:
        print(json.dumps(found, indent=1))
    else:
        console = Console()
        console.print(summary_table(runs, agreements, f"{loaded.name}, {len(texts)} prompts, {rounds} rounds, greedy"))
        console.print(prompt_table(runs))
    raise typer.Exit(0 if all(a.is_right for mine in agreements.values() for a in mine.values()) else 1)


def measured_of(runs: Runs, name: str) -> "Measured":
    """A contestant's prompts for the picture."""
    from treespec.viz import Measured

    mine = runs[name].values()
    return Measured(name, [ms_per_token(r) for r in mine], [tokens_per_pass(r) for r in mine], speeds(runs, name))


def _shapes(chains: list[int], trees: list[int], has_auto: bool) -> dict[str, Any]:
    """What is measured besides plain decoding, by name."""
    shapes: dict[str, Any] = {f"chain of {k}": Chain(k) for k in chains}
    return shapes | {f"tree of {n} nodes": str(n) for n in trees} | ({"auto": "auto"} if has_auto else {})


def _contestants(loaded: Loaded, ways: Mapping[str, tuple[Any, ...]], seed: int) -> list[Contestant]:
    """Plain decoding and every way, which are arguments of `speculation_of`."""
    contestants = [Contestant(PLAIN, dict)]
    for name, way in ways.items():
        make = partial(_options, loaded, *way, seed=seed)
        make()  # Wrong options and drafters that cannot be loaded end the command before anything is measured.
        contestants.append(Contestant(name, make))
    return contestants


def _measure(bench: Bench, contestants: list[Contestant], rounds: int) -> tuple[Runs, dict[str, dict[str, Agreement]]]:
    """All runs, and per contestant and prompt whether the output is plain's."""
    names = list(bench.inputs)
    with progress_bar() as progress:
        task = progress.add_task("measuring", total=len(names) + num_decodings(len(contestants), len(names), rounds))
        plains = {}
        for name in names:
            plains[name] = bench.reference(name)
            progress.advance(task)
        runs = measure(contestants, bench, rounds, partial(progress.advance, task))
    return runs, {name: bench.agreements(plains, mine) for name, mine in runs.items()}


def _options(*way: Any, seed: int) -> dict[str, Any]:
    return {"custom_generate": speculation_of(*way, seed=seed)}


def prompt_inputs(loaded: Loaded, texts: Sequence[str]) -> dict[str, dict[str, torch.Tensor]]:
    """The prompts by number and first words."""
    names = [f"{number + 1} {' '.join(text.split())[:24]}" for number, text in enumerate(texts)]
    return {n: encode(loaded, [{"role": "user", "content": text}]) for n, text in zip(names, texts, strict=True)}


def _save(found: dict[str, Any], runs: Runs, folder: Path, title: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_text(json.dumps(found, indent=1) + "\n")
    try:
        from treespec.viz import plot_comparison
    except ImportError:
        CONSOLE.print("there is no picture without matplotlib: pip install 'treespec[plots]'", markup=False)
        return
    plot_comparison([measured_of(runs, name) for name in runs], folder / "comparison.png", f"{title}, greedy")
    CONSOLE.print(f"{folder}/results.json, {folder}/comparison.png")
