"""The ways of decoding that are compared, by name: in this process, or in the environment of another library."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from transformers import CompileConfig, StaticCache

from benchmarks.common.drafters import fastest_head, warm_start
from benchmarks.control import RandomDrafts
from benchmarks.peers.process import environment
from treespec import Chain, Eagle3, TreeSpeculation, optimize, shipped_head
from treespec.hf.cpu import prepack_linears
from treespec.hf.introspect import CACHE_NAME
from treespec.hf.loading import smollm2
from treespec.hf.loading.models import load_model
from treespec.hf.models.pass_times import pass_times

ROOT = Path(__file__).parents[2]
EXIT_LAYERS = 24
"""Where early exit leaves: the untrained head agrees there with the last layer's at two of five positions."""
PLAIN, PACKED, OPTIMIZED, COMPILED, AUTO = "plain", "packed", "optimized", "compiled", "auto"
CHAINS, TREES = (2, 4, 6), (8, 16, 32)
DEFAULT = [PLAIN, OPTIMIZED, COMPILED, "lookup", *(f"chain-{n}" for n in CHAINS), "tree-8", AUTO]
TITLES = {
    PLAIN: "plain `generate`",
    PACKED: "plain, packed",
    OPTIMIZED: "plain, optimized",
    COMPILED: "plain, compiled",
    "lookup": "transformers' prompt lookup",
    "early-exit": f"transformers' assisted generation, {EXIT_LAYERS} of 30 layers draft",
    "assisted": "transformers' assisted generation, draft model",
    **{f"chain-{n}": f"chain of {n}" for n in CHAINS},
    **{f"head-chain-{n}": f"chain of {n}, head alone" for n in CHAINS},
    **{f"tree-{n}": f"tree of {n}" for n in TREES},
    AUTO: '`tree="auto"`',
    "auto-head": '`tree="auto"`, head alone',
    "auto-random": '`tree="auto"`, random drafts',
    "economize-lookup": "economize, prompt lookup",
    "economize-eagle3": "economize, EAGLE-3 (the shipped head)",
    "dejavuu": "dejavuu, suffixes and recycling",
    "vllm": "vLLM, plain",
    "vllm-ngram": "vLLM, n-grams",
}


class Output(NamedTuple):
    """The new tokens of one prompt and the time of the whole call."""

    tokens: list[int]
    seconds: float


class Decoder(Protocol):
    """A way of decoding that serves one prompt after the other.

    Attributes:
        is_reading_measured: whether its own call for one token says how long the prompt takes to read: not for trees,
            whose call for one token takes a whole step besides. They have the time of `OPTIMIZED`, their model.
    """

    is_reading_measured: bool

    def decode(self, inputs: dict[str, Tensor], num_new: int, temperature: float, seed: int) -> Output: ...


class Generate:
    """`generate` of transformers with some options: `custom_generate` for trees."""

    def __init__(self, model: Any, **options: Any) -> None:
        self._model, self._options = model, options
        self.is_reading_measured = "custom_generate" not in options

    def decode(self, inputs: dict[str, Tensor], num_new: int, temperature: float, seed: int) -> Output:
        torch.manual_seed(seed)
        sampling = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {"do_sample": False}
        start = time.perf_counter()
        out = self._model.generate(**inputs, **sampling, max_new_tokens=num_new, **self._options)
        tokens = out[0, inputs["input_ids"].shape[1] :].tolist()
        return Output(tokens, time.perf_counter() - start)


class Compiled(Generate):
    """`generate` whose passes after the prompt run through `torch.compile`: frozen weights, a static cache."""

    SLOTS = (512, 2048)
    """Static caches: a text gets the first that it fits in, as passes read all slots. Each is compiled at once."""

    def __init__(self, model: Any) -> None:
        settings: Any = {"fullgraph": False, "dynamic": False, "mode": None, "options": {"freezing": True}}
        config: Any = CompileConfig(**settings)
        config._compile_all_devices = True  # Else `generate` compiles on accelerators only.
        super().__init__(model, compile_config=config)
        self._caches = {slots: StaticCache(model.config, max_cache_len=slots) for slots in self.SLOTS}
        for slots in self.SLOTS:
            ids = torch.ones(1, slots // 2, dtype=torch.int64)
            self.decode({"input_ids": ids, "attention_mask": torch.ones_like(ids)}, 3, 0.0, 0)

    def decode(self, inputs: dict[str, Tensor], num_new: int, temperature: float, seed: int) -> Output:
        cache = next(c for slots, c in self._caches.items() if slots >= inputs["input_ids"].shape[1] + num_new)
        cache.reset()
        self._options[CACHE_NAME] = cache
        return super().decode(inputs, num_new, temperature, seed)


class Process:
    """Another library in its own environment; between two prompts it waits for a line and takes no time."""

    is_reading_measured = True

    def __init__(self, folder: Path, library: str, options: dict[str, Any], threads: int) -> None:
        """folder: of the virtual environment."""
        python = folder / "bin" / "python"
        if not python.exists():
            raise RuntimeError(f"there is no environment {folder.name}, which `make bench-peers` sets up")
        code = "from benchmarks.peers.process import serve; serve()"
        arguments = [str(python), "-c", code, library, json.dumps(options), str(smollm2.converted_folder())]
        self._errors = TemporaryFile("w+")  # noqa: SIM115 -- open as long as the process
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._errors}
        self._process = subprocess.Popen(arguments, cwd=ROOT, env=environment(threads), text=True, **pipes)
        self._read()

    def decode(self, inputs: dict[str, Tensor], num_new: int, temperature: float, seed: int) -> Output:
        prompt = inputs["input_ids"][0].tolist()
        request = {"prompt": prompt, "num_new": num_new, "temperature": temperature, "seed": seed}
        assert self._process.stdin is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        answer = self._read()
        return Output(answer["tokens"], answer["seconds"])

    def _read(self) -> dict[str, Any]:
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


def made(
    names: list[str], model: Any, threads: int, draft_model: Path | None
) -> tuple[dict[str, Decoder], dict[str, str]]:
    """The decoders by name, `PLAIN` and `OPTIMIZED` first, and why others are left out.

    Args:
        model: as it was loaded; packed and optimized copies of it are made here.
        draft_model: a folder, of `assisted`.
    """
    makers = own_makers(model, names, draft_model) | peer_makers(threads)
    decoders: dict[str, Decoder] = {}
    left_out: dict[str, str] = {}
    for name in dict.fromkeys([PLAIN, OPTIMIZED, *names]):
        try:
            decoders[name] = makers[name]()
        except (OSError, RuntimeError) as error:
            left_out[name] = str(error)
    return decoders, left_out


def own_makers(model: Any, names: list[str], draft_model: Path | None) -> dict[str, Callable[[], Decoder]]:
    """This process's contestants. Drafters and control learn from prompt to prompt, as in use."""
    packed = smollm2.load()[0] if PACKED in names else model
    optimized: Any = smollm2.load()[0]
    if PACKED in names:
        prepack_linears(packed)
    optimize(optimized, is_remeasured=True)
    pass_times(optimized, is_remeasured=True)
    head = fastest_head(optimized)

    def own_head() -> Eagle3:
        return Eagle3(head.head, head.hidden_layers)

    def tree(drafters: Any, shape: Any) -> Decoder:
        return Generate(optimized, custom_generate=TreeSpeculation(drafters, tree=shape))

    def merged(shape: Any) -> Decoder:
        return tree([own_head(), *warm_start().drafters()], shape)

    def assisted() -> Decoder:
        if draft_model is None:
            raise RuntimeError("no draft model ships with treespec: give --draft-model FOLDER")
        draft = load_model(str(draft_model), dtype=torch.float32).eval()
        optimize(draft)
        return Generate(optimized, assistant_model=draft)

    return {
        PLAIN: lambda: Generate(model),
        PACKED: lambda: Generate(packed),
        OPTIMIZED: lambda: Generate(optimized),
        COMPILED: lambda: Compiled(smollm2.load()[0]),
        "lookup": lambda: Generate(optimized, prompt_lookup_num_tokens=10),
        "early-exit": lambda: Generate(optimized, assistant_early_exit=EXIT_LAYERS),
        "assisted": assisted,
        **{f"chain-{n}": lambda n=n: merged(Chain(n)) for n in CHAINS},
        **{f"head-chain-{n}": lambda n=n: tree(own_head(), Chain(n)) for n in CHAINS},
        **{f"tree-{n}": lambda n=n: merged(n) for n in TREES},
        AUTO: lambda: merged("auto"),
        "auto-head": lambda: tree(own_head(), "auto"),
        "auto-random": lambda: tree(RandomDrafts(head.head), "auto"),
    }


def peer_makers(threads: int) -> dict[str, Callable[[], Decoder]]:
    """Contestants from other libraries, in the environments that `make bench-peers` sets up."""

    def process(environment: str, library: str, **options: Any) -> Callable[[], Decoder]:
        return lambda: Process(ROOT / environment, library, options, threads)

    economize, ngram = ".venv-peers/economize", {"prompt_lookup_max": 4, "prompt_lookup_min": 2}
    speculation = {"method": "ngram", "num_speculative_tokens": 4, **ngram}
    return {
        "economize-lookup": process(economize, "economize", head=None, cycle_length=8),
        "economize-eagle3": process(economize, "economize", head=str(shipped_head(smollm2.NAME)), cycle_length=4),
        "dejavuu": process(".venv-peers/dejavuu", "dejavuu", method="suffix_recycle_merge", budget=8, is_tree=True),
        "vllm": process(".venv-vllm", "vllm", speculation=None),
        "vllm-ngram": process(".venv-vllm", "vllm", speculation=speculation),
    }
