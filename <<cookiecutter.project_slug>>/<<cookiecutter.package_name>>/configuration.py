"""What every door shares: the error a user can mend, the exit codes, and the values that configs compute.

Imports Hydra only, so that a door can refuse a wrong request before torch is loaded.
"""

import functools
import logging
import os
import secrets
import shlex
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf

PROJECT_ROOT = Path(__file__).resolve().parents[1]
CONFIG_DIR = PROJECT_ROOT / "configs"

# Carries the run directory to the processes that a distributed run starts.
RUN_DIR_VARIABLE = "TRAINING_RUN_DIR"


class ConfigError(Exception):
    """A wrong request. The message says what was found, what is allowed and what to type."""


class RunError(Exception):
    """A right request that failed for a reason outside the program. The message says what to do."""


@functools.cache
def new_run_id() -> str:
    """Name this process's run: a time and a random suffix, or the job's id where a launcher starts every rank."""
    if os.environ.get("TORCHELASTIC_RUN_ID"):
        job = os.environ["TORCHELASTIC_RUN_ID"]
        if job == "none":
            raise ConfigError(
                "torchrun gave this job no id of its own, so its processes cannot agree on a run directory. "
                "Add --rdzv-id=NAME to torchrun, or run_id=NAME to the command."
            )
        return f"torchrun-{job}"
    if int(os.environ.get("SLURM_NTASKS", "1")) > 1 and "SLURM_PROCID" in os.environ:
        return f"slurm-{os.environ['SLURM_JOB_ID']}-{os.environ.get('SLURM_STEP_ID', '0')}"
    return f"{datetime.now():%Y-%m-%d_%H-%M-%S}-{secrets.token_hex(3)}"


def is_child_process() -> bool:
    """Say whether another process of the same run started this one."""
    return RUN_DIR_VARIABLE in os.environ and int(os.environ.get("LOCAL_RANK", "0")) > 0


def run_dir(name: str, run_id: str) -> str:
    # A name of digits only is read as a number.
    return os.environ[RUN_DIR_VARIABLE] if is_child_process() else str(PROJECT_ROOT / "logs" / str(name) / str(run_id))


def run_of_checkpoint(checkpoint: str | Path) -> Path:
    """Give the run directory of a run directory or checkpoint; for a checkpoint on its own, its folder."""
    path = Path(checkpoint).expanduser().absolute()
    if path.is_dir():
        return path
    return path.parent.parent if path.parent.name == "checkpoints" else path.parent


def find_checkpoint(checkpoint: str | Path) -> Path:
    """Give the checkpoint file meant by a run directory (its best, else its last) or by a file's own path."""
    path = Path(checkpoint).expanduser()
    if path.is_file():
        return path
    for candidate in (path / "checkpoints" / "best.ckpt", path / "checkpoints" / "last.ckpt"):
        if candidate.is_file():
            return candidate
    found = "which holds none yet" if path.is_dir() else "which does not exist"
    raise ConfigError(
        f"There is no checkpoint at {path}, {found}. A run directory or a .ckpt file is allowed. "
        "Try logs/latest, the newest run of this project."
    )


def beside_checkpoint(checkpoint: str, folder: str) -> str:
    if is_child_process():
        return os.environ[RUN_DIR_VARIABLE]
    return str(run_of_checkpoint(checkpoint) / folder)


OmegaConf.register_new_resolver("new_run_id", new_run_id, replace=True)
OmegaConf.register_new_resolver("project_root", lambda: str(PROJECT_ROOT), replace=True)
OmegaConf.register_new_resolver("run_dir", run_dir, replace=True)
OmegaConf.register_new_resolver("beside_checkpoint", beside_checkpoint, replace=True)


def shown(path: str | Path) -> str:
    """Write a path for a command to copy: relative where it lies below the working directory, quoted where needed."""
    path = Path(path)
    return shlex.quote(str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path))


def plain(config: DictConfig, resolve: bool = True) -> dict[str, Any]:
    """Give a configuration as nested dicts and lists, which a weights-only checkpoint can hold."""
    return cast(dict[str, Any], OmegaConf.to_container(config, resolve=resolve))


def exit_codes(task: Callable[..., Any]) -> Callable[..., Any]:
    """Turn a door's errors into exit codes: 2 and one message for a wrong request, 130 after Ctrl-C, 1 for a RunError.

    Any other exception goes on to Hydra, which ends the process with 1. Its traceback is in the run's log.
    """

    @functools.wraps(task)
    def with_exit_codes(*args: Any, **kwargs: Any) -> Any:
        try:
            return task(*args, **kwargs)
        except KeyboardInterrupt:
            sys.exit(130)
        except Exception as error:
            _log_traceback()
            if isinstance(error, RunError):
                refuse(error, exit_code=1)
            # Lightning's word for a wrong request, known by name: its module would load torch.
            if not isinstance(error, ConfigError) and type(error).__name__ != "MisconfigurationException":
                raise
            refuse(error)

    return with_exit_codes


def refuse(error: Exception, exit_code: int = 2) -> None:
    """End the process with the error's message on stderr."""
    if os.environ.get("HYDRA_FULL_ERROR") == "1":
        raise error
    print(f"\nError: {error}", file=sys.stderr)
    sys.exit(exit_code)


def _log_traceback() -> None:
    # The root logger's level does not filter records of other loggers, its console handler's does: file only.
    log = logging.getLogger(f"{__name__}.traceback")
    log.setLevel(logging.DEBUG)
    log.debug("The command ended with an error.", exc_info=True)
