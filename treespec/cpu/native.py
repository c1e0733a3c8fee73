"""Products for a few rows, RMS norms and attention, compiled by the machine's C++ compiler at their first use.

oneDNN's products of 16 rows take longer than reading the weights and longer than multiplying them. These keep nearer
to the memory's limit, and their rows do not depend on how many there are: a token's outputs are the same bits in a
pass over one node and over a tree. See native.cpp.
"""

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import torch
from jaxtyping import BFloat16, Float, Int8, Shaped
from torch import Tensor

from treespec.cpu.pages import HugePages
from treespec.errors import TreespecError
from treespec.hf.machine import processor

SOURCE = Path(__file__).with_name("native.cpp")
FLAGS = ("-O3", "-march=native", "-std=c++17", "-fPIC", "-fopenmp")
COMPILE_SECONDS = 120
ARGUMENTS = {
    "columns": [],
    "linear linear_int8 linear_bfloat16": [ctypes.c_void_p] * 4 + [ctypes.c_int64] * 3 + [ctypes.c_int32],
    "rms_norm rms_norm_bfloat16": [ctypes.c_void_p] * 3 + [ctypes.c_int64] * 2 + [ctypes.c_float],
    "attention attention_bfloat16": [ctypes.c_void_p] * 6 + [ctypes.c_float, ctypes.c_int32],
    "rotate": [ctypes.c_void_p] * 3 + [ctypes.c_int64] * 5,
    "mask": [ctypes.c_void_p] * 2 + [ctypes.c_int64] * 4,
}
"""The types of the functions' arguments."""


class NativeError(TreespecError):
    """There is no C++ compiler, or what it made cannot be loaded; the text says which."""


_loaded: dict[str, "NativeLinear"] = {}
"""By the function's name, for graphs of `torch.compile`, which know operators only."""
_pages = HugePages()
_refused: dict[Path, str] = {}
"""Libraries that cannot be loaded, and why."""
_operators = torch.library.Library("treespec", "FRAGMENT")
_operators.define("linear(Tensor inputs, Tensor packed, Tensor? bias, int num_outputs, str function) -> Tensor")


@torch.library.impl(_operators, "linear", "CPU")
def _linear(inputs: Tensor, packed: Tensor, bias: Tensor | None, num_outputs: int, function: str) -> Tensor:
    return _loaded[function].run(inputs, packed, bias, num_outputs)


@torch.library.register_fake("treespec::linear")
def _linear_shape(inputs: Tensor, packed: Tensor, bias: Tensor | None, num_outputs: int, function: str) -> Tensor:
    return inputs.new_empty(*inputs.shape[:-1], num_outputs)


class NativePart:
    """Functions of the compiled library.

    Raises `NativeError`: it cannot be compiled or loaded here.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._library = folder, load_library(folder)
        for names, arguments in ARGUMENTS.items():
            for name in names.split():
                function = getattr(self._library, f"treespec_{name}")
                function.argtypes, function.restype = arguments, None
        self._library.treespec_columns.restype = ctypes.c_int64
        self._columns = int(self._library.treespec_columns())

    def __reduce__(self) -> tuple[Any, ...]:
        """For pickled models: compiled again where they are loaded, if need be."""
        return type(self), (self._folder,)


class NativeLinear(NativePart):
    """The compiled product."""

    function = "treespec_linear"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._linear = getattr(self._library, self.function)
        _loaded[self.function] = self

    def pack(self, weight: Float[Tensor, "out in"]) -> Tensor:
        """A copy of the weights in the order in which they are read, see `panels`."""
        return _pages.copy(self.panels(weight))

    def panels(self, weight: Float[Tensor, "out in"]) -> Float[Tensor, "panels in columns"]:
        """Weights in the order in which they are read, padded with zeros to whole panels."""
        missing = -weight.shape[0] % self._columns
        padded = torch.nn.functional.pad(weight, (0, 0, 0, missing))
        return padded.view(-1, self._columns, weight.shape[1]).transpose(1, 2).contiguous()

    def run(self, inputs: Float[Tensor, "*rows in"], packed: Tensor, bias: Tensor | None, num_outputs: int) -> Tensor:
        """float32 [..., in] to [..., out] on torch's number of threads."""
        # A pass calls this hundreds of times: this is the fastest of several equivalent forms.
        *leading, size = inputs.shape
        outputs = inputs.new_empty(*leading, num_outputs)
        rows, bias = inputs.contiguous(), None if bias is None else bias.contiguous()  # Alive until the call.
        pointers = rows.data_ptr(), packed.data_ptr(), None if bias is None else bias.data_ptr(), outputs.data_ptr()
        self._linear(*pointers, inputs.numel() // max(size, 1), size, num_outputs, torch.get_num_threads())
        return outputs


class Int8Linear(NativeLinear):
    """The same with weights rounded to 8 bits, symmetric, one scale per output, and inputs to 16, one scale per row.

    Sums are exact in 32 bits: rows of n inputs are rounded to integers of at most 2^31 / (127 n). It reads a quarter of
    the bytes. Rows do not depend on how many there are here either.
    """

    function = "treespec_linear_int8"

    def panels(self, weight: Float[Tensor, "out in"]) -> Int8[Tensor, "panels bytes"]:
        """Per panel the weights as int8 and, after them, the bytes of their outputs' float32 scales."""
        scales = (weight.abs().amax(1, keepdim=True) / 127).clamp(min=torch.finfo(torch.float32).tiny)  # Not 0 / 0.
        panels = in_pairs((weight / scales).round().to(torch.int8), self._columns)
        factors = super().panels(scales).view(len(panels), -1)
        return torch.cat([panels.flatten(1), factors.view(torch.int8)], 1)


class Bfloat16Linear(NativeLinear):
    """The same in bfloat16; sums are float32, and rounded once. Inputs are multiplied in pairs."""

    function = "treespec_linear_bfloat16"

    def panels(self, weight: BFloat16[Tensor, "out in"]) -> BFloat16[Tensor, "panels pairs columns 2"]:
        """See `in_pairs`."""
        return in_pairs(weight, self._columns)

    def run(
        self, inputs: BFloat16[Tensor, "*rows in"], packed: Tensor, bias: Tensor | None, num_outputs: int
    ) -> BFloat16[Tensor, "*rows out"]:
        if inputs.shape[-1] % 2:
            inputs = torch.nn.functional.pad(inputs, (0, 1))
        return super().run(inputs, packed, bias, num_outputs)


def in_pairs(weight: Shaped[Tensor, "out in"], columns: int) -> Shaped[Tensor, "panels pairs columns 2"]:
    """Panels with two inputs of every output side by side; an odd number of inputs is padded with a zero."""
    even = torch.nn.functional.pad(weight, (0, weight.shape[1] % 2, 0, -weight.shape[0] % columns))
    return even.view(-1, columns, even.shape[1] // 2, 2).transpose(1, 2).contiguous()


class NativeNorm(NativePart):
    """RMS norms of rows, float32 or bfloat16, in one function, where PyTorch runs six operators."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        library = self._library
        self._norms = {torch.float32: library.treespec_rms_norm, torch.bfloat16: library.treespec_rms_norm_bfloat16}

    def run(self, inputs: Float[Tensor, "*rows size"], weight: Float[Tensor, "size"], eps: float) -> Tensor:
        """The norm's outputs; inputs and weight have one dtype."""
        rows, weight = inputs.contiguous(), weight.contiguous()
        outputs, size = torch.empty_like(rows), len(weight)
        pointers = rows.data_ptr(), weight.data_ptr(), outputs.data_ptr()
        self._norms[rows.dtype](*pointers, rows.numel() // max(size, 1), size, eps)
        return outputs


native_linear, native_norm = functools.cache(NativeLinear), functools.cache(NativeNorm)
int8_linear, bfloat16_linear = functools.cache(Int8Linear), functools.cache(Bfloat16Linear)
"""One of each for a folder, into which the library is compiled once per machine."""


def load_library(folder: Path, is_background: bool = False) -> ctypes.CDLL:
    """The library from the folder; a missing or damaged one is compiled, by the first compiler whose library loads.

    `is_background`: at a low priority.
    """
    reasons = []
    prefix = ["nice", "-n", "10"] if is_background and shutil.which("nice") else []
    for compiler in find_compilers():
        try:
            return _load(compiler, _library(compiler, folder), prefix)
        except NativeError as error:
            reasons.append(str(error))
    raise NativeError("; ".join(dict.fromkeys(reasons)))


def is_compiled(folder: Path) -> bool:
    """Whether `load_library` has nothing to compile: a library is there, or no compiler."""
    try:
        return any(_library(compiler, folder).is_file() for compiler in find_compilers())
    except NativeError:
        return True


def _library(compiler: str, folder: Path) -> Path:
    return folder / f"linear-{_digest(compiler)}.so"


def _load(compiler: str, path: Path, prefix: list[str]) -> ctypes.CDLL:
    if path in _refused:
        raise NativeError(_refused[path])
    reason = ""
    for is_fresh in (False, True):
        if is_fresh or not path.is_file():
            _compile(compiler, path, prefix)
        try:
            # All names are looked up at once: a missing OpenMP runtime is an error here, not the process's end later.
            return ctypes.CDLL(str(path), mode=os.RTLD_NOW)
        except OSError as error:
            reason = str(error)
    # Kept, as it took a compilation: clang's libraries need another OpenMP runtime than most PyTorch wheels have.
    _refused[path] = f"what {Path(compiler).name} makes of the native product cannot be loaded: {reason}"
    raise NativeError(_refused[path])


def find_compilers() -> list[str]:
    """The paths of C++ compilers, in the order in which they are tried. Raises `NativeError`: none, or off Linux."""
    if platform.system() != "Linux":
        raise NativeError(f"the native product is made for Linux, not for {platform.system()}")
    names = (os.environ.get("CXX"), "g++", "clang++", "c++")
    found = [path for name in names if name and (path := shutil.which(name))]
    if not found:
        raise NativeError("no C++ compiler found ($CXX, g++, clang++, c++)")
    return list(dict.fromkeys(found))


def _compile(compiler: str, path: Path, prefix: list[str]) -> None:
    """Write the library whole or not at all; `prefix`: what runs the compiler."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
            objects = Path(scratch) / "linear.o"
            library = Path(scratch) / "linear.so"
            _call([*prefix, compiler, *FLAGS, "-c", str(SOURCE), "-o", str(objects)])
            # Linked without an OpenMP runtime of its own: PyTorch's, with its threads, is loaded already.
            _call([*prefix, compiler, "-shared", str(objects), "-o", str(library)])
            library.replace(path)
    except OSError as error:
        raise NativeError(f"the native product cannot be written to {path.parent}: {error}") from error


def _call(command: list[str]) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=COMPILE_SECONDS)
    except (subprocess.SubprocessError, OSError) as error:
        lines = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        raise NativeError(f"{Path(command[0]).name} failed: {lines[0] if lines else error}") from error


def _digest(compiler: str) -> str:
    """A digest of everything that the library depends on, the processor included: -march=native serves no other."""
    facts = [SOURCE.read_text(), compiler, *FLAGS, processor(), torch.__version__]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]
