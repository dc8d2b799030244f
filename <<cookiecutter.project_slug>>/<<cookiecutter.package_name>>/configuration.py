"""What every door shares: the error a user can mend, the exit codes, and the values that configs compute.

Imports Hydra only, so that a door can refuse a wrong request before torch is loaded.
"""

import functools
import json
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

# With these, whoever starts several processes numbers them.
RANKS = ("RANK", "LOCAL_RANK", "SLURM_PROCID")
NUMBERS = (*RANKS, "NODE_RANK", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS", "WORLD_SIZE")
# One of these says that somebody did.
LAUNCHED = (RUN_DIR_VARIABLE, "TORCHELASTIC_RUN_ID", "WORLD_SIZE", "SLURM_NTASKS")


class ConfigError(Exception):
    """A wrong request. The message says what was found, what is allowed and what to type."""


class RunError(Exception):
    """A right request that failed for a reason outside the program. The message says what to do."""


def whole_number(variable: str, default: int = 0) -> int:
    """Read a variable of the environment.

    Raises:
        ConfigError: it holds something else.
    """
    value = os.environ.get(variable, str(default))
    if not value.isdecimal():
        raise ConfigError(
            f"{variable}={value} stands in the environment. A whole number is allowed. Try: unset {variable}"
        )
    return int(value)


def check_launcher() -> None:
    """
    Raises:
        ConfigError: what the environment says of this process and its like cannot be so.
    """
    numbers = {variable: whole_number(variable) for variable in NUMBERS if variable in os.environ}
    if numbers.get("SLURM_NTASKS", 1) > 1 and "SLURM_PROCID" in numbers and "SLURM_JOB_ID" not in os.environ:
        raise ConfigError(
            f"SLURM_NTASKS={numbers['SLURM_NTASKS']} and SLURM_PROCID={numbers['SLURM_PROCID']} stand in the "
            "environment without SLURM_JOB_ID. srun sets all three. Try: unset SLURM_NTASKS SLURM_PROCID"
        )
    stale = [rank for rank in RANKS if numbers.get(rank, 0) > 0]
    if stale and not any(variable in os.environ for variable in LAUNCHED):
        # It would train, and as one process of many leave it to the first to say and write anything.
        raise ConfigError(
            f"{stale[0]}={numbers[stale[0]]} stands in the environment, and no launcher started this process: it sets "
            f"{' or '.join(LAUNCHED[1:])}, too. Try: unset {' '.join(stale)}"
        )


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
    if whole_number("SLURM_NTASKS", 1) > 1 and "SLURM_PROCID" in os.environ:
        return f"slurm-{os.environ['SLURM_JOB_ID']}-{os.environ.get('SLURM_STEP_ID', '0')}"
    return f"{datetime.now():%Y-%m-%d_%H-%M-%S}-{secrets.token_hex(3)}"


def is_child_process() -> bool:
    """Say whether another process of the same run started this one."""
    return RUN_DIR_VARIABLE in os.environ and whole_number("LOCAL_RANK") > 0


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
    """Give the checkpoint file meant by a run directory (its best, else its last) or by a file's own path.

    A best checkpoint of another name than best.ckpt is the one that results.json has.
    """
    path = Path(checkpoint).expanduser()
    if path.is_file():
        return path
    folder = path / "checkpoints"
    best = _recorded_best(path) or folder / "best.ckpt"
    # The run may have been moved since.
    for candidate in (folder / "best.ckpt", folder / best.name, best, folder / "last.ckpt"):
        if candidate.is_file():
            return candidate
    found = "which holds none yet" if path.is_dir() else "which does not exist"
    raise ConfigError(
        f"There is no checkpoint at {path}, {found}. A run directory or a .ckpt file is allowed. "
        "Try logs/latest, the newest run of this project."
    )


def _recorded_best(run_dir: Path) -> Path | None:
    try:
        results = json.loads((run_dir / "results.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    best = results.get("best_checkpoint") if isinstance(results, dict) else None
    return Path(best) if isinstance(best, str) else None


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
