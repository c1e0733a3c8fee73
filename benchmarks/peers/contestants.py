"""The ways of decoding that are compared, by name: in this process, or in the environment of another library."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import torch
from transformers import CompileConfig, StaticCache

from benchmarks.common.drafters import MadeUp, fastest_head
from benchmarks.peers.process import environment
from treespec import Chain, TreeSpeculation, optimize, shipped_head
from treespec.hf.introspect import CACHE_NAME
from treespec.hf.loading.models import load_model
from treespec.lab import smollm2
from treespec.lab.measure.paired import Bench, Contestant, Run
from treespec.lab.named import named_drafters
from treespec.protocols import Frontier, Proposal
from treespec.speedup.sources import Found
from treespec.speedup.sped_up import SpedUp

ROOT = Path(__file__).parents[2]
PLAIN, OPTIMIZED, COMPILED, AUTO = "plain", "optimized", "compiled", "auto"
SHAPES: dict[str, Any] = {
    **{f"chain-{n}": Chain(n) for n in (1, 2, 3, 4, 6)},
    **{f"tree-{n}": n for n in (4, 8, 12, 16, 24, 32)},
    AUTO: "auto",
}
MERGED, RANDOM, FIRST = "head+warm", "random", "first"
"""Random drafts, with `AUTO` only; first: the merged head in first calls, every prompt by a new object."""
WORDS = {RANDOM: "random drafts", FIRST: "first calls", "head": "head alone", "warm": "lookups"}
OTHERS = {
    COMPILED: "plain, compiled",
    "lookup": "transformers' prompt lookup",
    "assisted": "transformers' assisted generation, draft model",
    "economize-lookup": "economize, prompt lookup",
    "economize-eagle3": "economize, EAGLE-3 (the shipped head)",
    "dejavuu": "dejavuu, suffixes and recycling",
    "vllm": "vLLM, plain",
    "vllm-ngram": "vLLM, n-grams",
    **{f"before-{shape}": f"an earlier treespec, {shape}" for shape in ("chain-4", "tree-8", AUTO)},
}
TITLES = {PLAIN: "plain `generate`", OPTIMIZED: "plain, optimized", **OTHERS}


def tree_name(shape: str, drafter: str) -> str:
    """A contestant's name: the shape, and its drafter where that is not the head merged with warm lookups."""
    return shape if drafter == MERGED else f"{shape}-{drafter}"


def title(name: str) -> str:
    """A contestant's name in tables."""
    found = re.fullmatch(r"(auto|chain-\d+|tree-\d+)(?:-(.+))?", name)
    if found is None:
        return TITLES[name]
    shape = '`tree="auto"`' if found[1] == AUTO else found[1].replace("-", " of ")
    return shape + (f", {WORDS.get(found[2], found[2])}" if found[2] else "")


class RandomDrafts(MadeUp):
    """Proposes random tokens, at the price of a head's passes: what control must back off from."""

    most_depth = 8

    def __init__(self, head: Any) -> None:
        self._head, self.num_weights = head, sum(weight.numel() for weight in head.parameters())

    def expand(self, frontier: Frontier) -> Proposal:
        """Equal confidence in eight random tokens."""
        shape = (*frontier.tokens.shape, 8)
        self._head.lm_head(torch.zeros(frontier.tokens.shape[1], self._head.lm_head.in_features))
        return Proposal(torch.full(shape, 0.12), torch.randint(self._session.vocab_size, shape))


@dataclass(frozen=True)
class Compiled(Contestant):
    """`generate` whose passes after the prompt run through `torch.compile`: frozen weights, a static cache.

    `caches`: by their slots; a text has the first that it fits in, for passes read all slots.
    """

    caches: dict[int, StaticCache] = field(default_factory=dict)

    @classmethod
    def of(cls, model: Any, slots: Sequence[int] = (512, 2048)) -> Compiled:
        settings: Any = {"fullgraph": False, "dynamic": False, "mode": None, "options": {"freezing": True}}
        config: Any = CompileConfig(**settings)
        config._compile_all_devices = True  # Else `generate` compiles on accelerators only.
        caches = {n: StaticCache(model.config, max_cache_len=n) for n in slots}
        return cls(COMPILED, lambda: {"compile_config": config}, model, caches)

    def start(self, bench: Bench) -> Callable[[str], Run]:
        options = self.options()

        def decode(prompt: str) -> Run:
            longest = bench.inputs[prompt]["input_ids"].shape[1] + bench.num_new
            cache = next(cache for slots, cache in self.caches.items() if slots >= longest)
            cache.reset()
            return bench.decode(prompt, options | {CACHE_NAME: cache}, self.model)

        return decode


class FirstCalls(Contestant):
    """A new object for every prompt, which is made before the call."""

    def start(self, bench: Bench) -> Callable[[str], Run]:
        return lambda prompt: bench.decode(prompt, self.options(), self.model)


class Process:
    """Another process that greets, then answers lines of JSON; between two of them it waits and takes no time."""

    def __init__(self, command: list[str], environment: dict[str, str], folder: Path = ROOT) -> None:
        self._errors = TemporaryFile("w+")  # noqa: SIM115 -- open as long as the process
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._errors}
        self._process = subprocess.Popen(command, cwd=folder, env=environment, text=True, **pipes)
        self._read()

    @classmethod
    def of_library(cls, folder: Path, library: str, options: dict[str, Any], threads: int) -> Process:
        """Another library in the virtual environment of that folder."""
        python = folder / "bin" / "python"
        if not python.exists():
            raise RuntimeError(f"there is no environment {folder.name}, which `make bench-peers` sets up")
        # Nothing of this folder is on its path: the environment may have a treespec of its own.
        code = "import runpy; runpy.run_path('benchmarks/peers/process.py')['serve']()"
        command = [str(python), "-P", "-c", code, library, json.dumps(options), str(smollm2.converted_folder())]
        return cls(command, environment(threads))

    def ask(self, request: Any) -> Any:
        assert self._process.stdin is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        return self._read()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._errors.seek(0)
            reason = "".join(self._errors.readlines()[-1:]).strip() or "its process ended"
            self.close()
            raise RuntimeError(reason)
        return json.loads(line)

    def close(self) -> None:
        with self._errors, self._process:  # Leaving them closes the pipes and waits for the end.
            self._process.terminate()


@dataclass(frozen=True)
class Elsewhere(Contestant):
    """Another library, one prompt at a time; a call for one token says how long the prompt takes to read."""

    process: Any = None

    def start(self, bench: Bench) -> Callable[[str], Run]:
        temperature = bench.sampling.get("temperature", 0.0)

        def decode(prompt: str) -> Run:
            ids = bench.inputs[prompt]["input_ids"][0].tolist()
            request = {"prompt": ids, "temperature": temperature, "seed": bench.seed or 0}
            whole, reading = (self.process.ask(request | {"num_new": num}) for num in (bench.num_new, 1))
            return Run([whole["tokens"]], whole["seconds"], 0, reading["seconds"], 1)

        return decode


class Makers:
    """Makes contestants of their names. Drafters and control learn from prompt to prompt, as in use."""

    def __init__(self, model: Any, tokenizer: Any, threads: int, draft_model: Path | None = None) -> None:
        """model: as it was loaded; an optimized copy of it is made here, which all but plain decoding use."""
        self._model, self._tokenizer, self._threads, self._draft_model = model, tokenizer, threads, draft_model
        self.optimized: Any = smollm2.load()[0]
        optimize(self.optimized, is_remeasured=True)
        self._parts: dict[str, Any] = {"head": fastest_head(self.optimized)}

    def make(self, others: Sequence[str], drafters: Sequence[str], shapes: Sequence[str], is_single: bool) -> Made:
        """Plain decoding with both models first; then the others, and every drafter with every shape."""
        found = Made([Contestant(PLAIN, dict, self._model), Contestant(OPTIMIZED, dict)], {})
        for name in others:
            try:
                found.contestants.append(self._other(name, is_single))
            except (OSError, RuntimeError) as error:
                found.left_out[name] = str(error)
        found.contestants.extend(
            self._tree(drafter, shape)
            for drafter, shape in product(drafters, shapes)
            if shape == AUTO or drafter != RANDOM
        )
        return found

    def _tree(self, drafter: str, shape: str) -> Contestant:
        def speculation() -> Any:
            known = MERGED if drafter == FIRST else drafter
            return self._auto(known) if shape == AUTO else TreeSpeculation(self._drafters(known), tree=SHAPES[shape])

        made, kind = (speculation, FirstCalls) if drafter == FIRST else (cache(speculation), Contestant)
        return kind(tree_name(shape, drafter), lambda: {"custom_generate": made()})

    def _auto(self, drafter: str) -> SpedUp:
        """A `SpedUp` as `speed_up` returns it where it finds these drafters."""
        return SpedUp(self.optimized, Found(self._drafters(drafter), [drafter]), {})

    def _drafters(self, name: str) -> Any:
        if name == RANDOM:
            return [RandomDrafts(self._parts["head"].head)]
        return named_drafters(name.split("+"), self.optimized, self._tokenizer, smollm2.NAME, self._parts)

    def _other(self, name: str, is_single: bool) -> Contestant:
        if not is_single and name != COMPILED:
            raise RuntimeError("it decodes single prompts only")
        if name == COMPILED:
            return Compiled.of(smollm2.load()[0])
        if name in LIBRARIES:
            folder, library, options = LIBRARIES[name]
            return Elsewhere(name, dict, None, Process.of_library(ROOT / folder, library, options, self._threads))
        is_lookup = name == "lookup"
        return Contestant(name, (lambda: {"prompt_lookup_num_tokens": 10}) if is_lookup else self._assisted())

    def _assisted(self) -> Callable[[], dict[str, Any]]:
        if self._draft_model is None:
            raise RuntimeError("no draft model ships with treespec: give --draft-model FOLDER")
        draft = load_model(str(self._draft_model), dtype=torch.float32).eval()
        optimize(draft)
        return lambda: {"assistant_model": draft}


@dataclass(frozen=True)
class Made:
    """Contestants, and why others are left out, by name."""

    contestants: list[Contestant]
    left_out: dict[str, str]

    def close(self) -> None:
        """End the processes of other libraries."""
        for contestant in self.contestants:
            if isinstance(contestant, Elsewhere):
                contestant.process.close()


_NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4, "prompt_lookup_min": 2}
_ECONOMIZE = ".venv-peers/economize"
LIBRARIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "economize-lookup": (_ECONOMIZE, "economize", {"head": None, "cycle_length": 8}),
    "economize-eagle3": (_ECONOMIZE, "economize", {"head": str(shipped_head(smollm2.NAME)), "cycle_length": 4}),
    "dejavuu": (".venv-peers/dejavuu", "dejavuu", {"method": "suffix_recycle_merge", "budget": 8, "is_tree": True}),
    "vllm": (".venv-vllm", "vllm", {"speculation": None}),
    "vllm-ngram": (".venv-vllm", "vllm", {"speculation": _NGRAM}),
    **{
        f"before-{shape}": (".venv-before", "treespec", {"head": str(shipped_head(smollm2.NAME)), "tree": tree})
        for shape, tree in {"chain-4": "chain-4", "tree-8": 8, AUTO: AUTO}.items()
    },
}
"""The environment that `make bench-peers` sets up, the library and its options, see `process.LIBRARIES`."""
