"""What processes share: the cores, and work that one of them does for all."""

import fcntl
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from rich.progress import track

Item = TypeVar("Item")
Result = TypeVar("Result")


@contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Make `folder` and hold its lock: of ranks, runs and nodes that share the disk, the others wait.

    The system takes the lock from a process that is killed.

    Raises:
        OSError: the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def cores() -> int:
    """Give the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_threads(task: Callable[[Item], Result], items: list[Item], title: str) -> Iterator[Result]:
    """Do what lets other threads run meanwhile, as decoding an image does, on all cores; show how far it is."""

    def results() -> Iterator[Result]:
        with ThreadPoolExecutor(cores()) as threads:
            # In pieces: results that nobody has taken yet stay in memory.
            for start in range(0, len(items), 256):
                yield from threads.map(task, items[start : start + 256])

    yield from track(results(), title, len(items))
