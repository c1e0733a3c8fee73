"""`Ranks`: the processes that run one model together, each with a part of its weights (`tp_plan="auto"`).

Every pass of such a model sums over all processes, its ranks: a rank that makes another pass than the others, or none,
leaves them waiting. So what may differ from rank to rank is rank 0's everywhere (seeds, trees, verdicts, measured
times), and what must be equal (calls, the nodes of every pass) is compared before any rank waits for a sum.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from treespec.errors import RanksDisagreeError, TreespecError, UnsupportedModelError

Value = TypeVar("Value")

TIMEOUT = timedelta(minutes=10)
"""How long a rank waits for the others before it raises."""
ROW_BYTES = 4096
"""Bytes per rank of one collective operation; longer messages take a second one."""
_COUNT_BYTES = 8
_AN_ERROR = "an error"

_known: dict[tuple[int, ...], tuple[Any, Ranks]] = {}


def ranks_of(model: nn.Module) -> Ranks:
    """The processes that run a model together, one of several processes' models.

    Raises `UnsupportedModelError`: the model is split in another way than by tensor parallelism.
    """
    mesh: Any = model._device_mesh
    names = mesh.mesh_dim_names or ("tp",) * mesh.ndim
    other = [name for name, size in zip(names, mesh.shape, strict=True) if size > 1 and name != "tp"]
    if other:
        raise UnsupportedModelError(
            f"{type(model).__name__} is split over processes by {other}: only tensor parallelism is served, "
            'from_pretrained(..., tp_plan="auto")'
        )
    members = tuple(mesh.mesh.flatten().tolist())
    world = dist.group.WORLD
    if members not in _known or _known[members][0] is not world:
        _known[members] = world, Ranks(members)  # Another world: the processes have been connected again.
    return _known[members][1]


class Ranks:
    """Agreements between processes; `members` are their global ranks, the first of them is called rank 0.

    Every method but `leave` is a collective operation on the host: all ranks call it in the same order, with the same
    `what`, or all get a `RanksDisagreeError` that names where each of them is.
    """

    def __init__(self, members: Sequence[int]) -> None:
        self._members, self._group = list(members), None
        self.index = self._members.index(dist.get_rank())
        self._agreed: Any = None
        self._shared: BaseException | None = None
        self._left: Any = None

    @property
    def size(self) -> int:
        return len(self._members)

    def agree(self, what: str, value: Value) -> Value:
        """Rank 0's value, on every rank; plain Python objects only."""
        self._agreed = self._exchange(what, value if self.index == 0 else None)[0]
        return self._agreed

    def compute(self, what: str, run: Callable[[], Value]) -> Value:
        """Rank 0's result of `run`, on every rank; its error is raised on all of them.

        The others compute too, for the sake of random streams and of what else a computation changes.
        """
        value, error = None, None
        try:
            value = run()
        except TreespecError as raised:
            error = raised
        value, error = self._exchange(what, (value, error) if self.index == 0 else None)[0]
        if error is not None:
            self._shared = error
            raise error
        return value

    def check(self, what: str, value: Callable[[], object]) -> None:
        """Raise `RanksDisagreeError` on every rank unless `value()` is the same on all, of plain Python objects.

        What was agreed on just before is the same everywhere and is not compared.
        """
        own = value()
        if own == self._agreed:
            return
        found = self._exchange(what, hashlib.sha256(repr(own).encode()).hexdigest())
        different = [rank for rank, digest in enumerate(found) if digest != found[0]]
        if different:
            raise RanksDisagreeError(
                f"ranks {different} have another {what} than rank 0: all ranks of a tensor parallel model must make "
                "the same calls, with the same prompts and options"
            )

    @contextmanager
    def together(self, what: str, value: Callable[[], object]) -> Iterator[None]:
        """A block that all ranks enter with the same value, see `check`; an error in it ends the others' waiting."""
        self.check(what, value)
        try:
            yield
        except BaseException as error:
            self.leave(error)
            raise

    def leave(self, error: BaseException) -> None:
        """Let the others know of an error on this rank, where they wait for it; does not wait for them."""
        if not isinstance(error, RanksDisagreeError) and error is not self._shared:
            message = f"{type(error).__name__}: {error}"[: ROW_BYTES // 8]
            self._left = self._gather(_row((_AN_ERROR, message)), is_waiting=False)

    def _exchange(self, what: str, value: Any) -> list[Any]:
        """Every rank's value."""
        try:
            messages = self._messages((what, value))
        except RuntimeError as error:  # From torch.distributed, after a timeout or when a process has gone.
            raise RanksDisagreeError(f"rank {self.index} waited for the others at {what} in vain: {error}") from error
        stopped = [f"rank {rank}: {value}" for rank, (kind, value) in enumerate(messages) if kind == _AN_ERROR]
        if stopped:
            raise RanksDisagreeError(f"rank {self.index} stops at {what}, for another has stopped; {stopped[0]}")
        if any(kind != what for kind, _ in messages):
            found = ", ".join(f"rank {rank} is at {kind}" for rank, (kind, _) in enumerate(messages))
            raise RanksDisagreeError(f"the ranks of a tensor parallel model must make the same calls: {found}")
        return [value for _, value in messages]

    def _messages(self, message: tuple[str, Any]) -> list[Any]:
        own = _row(message)
        rows = self._gather(own[:ROW_BYTES])
        longest = max(_num_bytes(row) for row in rows)
        if longest > ROW_BYTES:
            rest = torch.nn.functional.pad(own[ROW_BYTES:], (0, longest - max(len(own), ROW_BYTES)))
            rows = [torch.cat(parts) for parts in zip(rows, self._gather(rest), strict=True)]
        return [pickle.loads(row[_COUNT_BYTES : _num_bytes(row)].numpy().tobytes()) for row in rows]

    def _gather(self, row: Tensor, is_waiting: bool = True) -> Any:
        """The rows of all ranks, uint8 [n] each; or, without waiting, what keeps the operation alive."""
        if self._group is None:
            is_world = self.size == dist.get_world_size()
            options: dict[str, Any] = {} if is_world else {"use_local_synchronization": True}
            self._group = dist.new_group(self._members, timeout=TIMEOUT, backend="gloo", **options)
        rows = [torch.empty_like(row) for _ in self._members]
        work = dist.all_gather(rows, row, group=self._group, async_op=True)
        if not is_waiting:
            return work, rows, row
        assert work is not None
        work.wait()
        return rows


def _row(message: tuple[str, Any]) -> Tensor:
    """A message's length and bytes, uint8 [>= ROW_BYTES]."""
    body = pickle.dumps(message)
    size = _COUNT_BYTES + len(body)
    padded = size.to_bytes(_COUNT_BYTES, "little") + body + bytes(max(ROW_BYTES - size, 0))
    return torch.frombuffer(bytearray(padded), dtype=torch.uint8)


def _num_bytes(row: Tensor) -> int:
    return int.from_bytes(row[:_COUNT_BYTES].numpy().tobytes(), "little")
