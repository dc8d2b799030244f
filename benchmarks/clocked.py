"""What checkpoints and the bookkeeping of an exact resume take of training, clocked inside one run of train.py.

`python clocked.py PROJECT PACKAGE OVERRIDES` prints the seconds of all epochs, and of them those spent on checkpoints
and on bookkeeping, as a JSON object. Two runs in turn could not tell parts this small from the machine's own drift.
"""

import json
import runpy
import sys
from collections import Counter
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from time import perf_counter
from typing import Any

from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loops.fit_loop import _FitLoop

seconds: Counter[str] = Counter()
running: list[str] = []


def clock(owner: Any, name: str, part: str) -> None:
    """Replace a function by one that counts its time to a part, and no longer to the part that it interrupts."""
    timed: Callable[..., Any] = getattr(owner, name)

    @wraps(timed)
    def counted(*args: Any, **kwargs: Any) -> Any:
        started = perf_counter()
        running.append(part)
        try:
            return timed(*args, **kwargs)
        finally:
            spent = perf_counter() - started
            running.pop()
            seconds[part] += spent
            if running:
                seconds[running[-1]] -= spent

    setattr(owner, name, counted)


def main(project: str, package: str, *overrides: str) -> None:
    sys.path.insert(0, project)
    last_checkpoint = import_module(f"{package}.callbacks.last_checkpoint").LastCheckpoint
    datamodule = import_module(f"{package}.data.datamodule")
    clock(_FitLoop, "run", "training")
    for hook in ("on_train_batch_end", "on_train_epoch_end", "on_validation_end"):
        clock(ModelCheckpoint, hook, "checkpoints")
    clock(last_checkpoint, "save", "checkpoints")
    clock(last_checkpoint, "on_train_batch_start", "bookkeeping")
    clock(datamodule, "seed_all", "bookkeeping")
    clock(datamodule.ImageDataModule, "state_dict", "bookkeeping")
    sys.argv[:] = [f"{project}/train.py", *overrides]
    runpy.run_path(sys.argv[0], run_name="__main__")
    print(json.dumps({"epochs": seconds.total(), **{part: seconds[part] for part in ("checkpoints", "bookkeeping")}}))


if __name__ == "__main__":
    main(*sys.argv[1:])
