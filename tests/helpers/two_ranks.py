"""Two processes that run one tiny model together, tensor parallel over gloo, as `torchrun` would start them."""

import multiprocessing
import os
import socket
import traceback
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

SECONDS = 120.0


def on_two_ranks(run: Callable[..., Any], *args: Any) -> list[Any]:
    """Results of `run(*args)` on rank 0 and on rank 1; an error of either is an AssertionError with its traceback."""
    context: Any = multiprocessing.get_context("fork")  # Modules need not be imported again.
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    pipes, processes = [], []
    for rank in range(2):
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_main, args=(rank, port, theirs, run, args), daemon=True)
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
    try:
        results = [pipe.recv() if pipe.poll(SECONDS) else "no answer" for pipe in pipes]
    finally:
        for process in processes:
            process.kill()
            process.join()
    failed = [result for result in results if isinstance(result, str)]
    assert not failed, "\n".join(failed)
    return [result[0] for result in results]


def _main(rank: int, port: int, pipe: Any, run: Callable[..., Any], args: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    backend: Any = torch._C
    backend._get_accelerator = lambda: torch.device("cpu")  # Other tests in this process pretend that there is one.
    world = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in world.items()})
    try:
        dist.init_process_group("gloo")
        pipe.send((run(*args),))
    except BaseException:
        pipe.send(traceback.format_exc())
