"""Writes what a run leaves behind beside checkpoints and metrics (the run directory of the README)."""

import fcntl
import json
import logging
import os
import platform
import secrets
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import IO, Any

import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from .configuration import PROJECT_ROOT, ConfigError
from .masking import mask

log = logging.getLogger(__name__)

RECORDED_PACKAGES = ("lightning", "torch", "torchvision", "torchmetrics", "hydra-core", "numpy", "scikit-learn")


def open_run_directory(run_dir: Path, again: bool) -> IO[str]:
    """Record the environment and point logs/latest at the run. Called on rank 0, once each time a run starts.

    Args:
        again: the run goes on; what is recorded goes into a file of its own.

    Returns:
        a lock on the directory, held until it is closed.

    Raises:
        ConfigError: another run already uses the directory.
    """
    lock = (run_dir / ".lock").open("a", encoding="utf-8")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        lock.close()
        raise ConfigError(f"{run_dir}: another process is writing this run. Wait for its end, or stop it.") from error
    names = ("environment.json" if number == 1 else f"environment-{number}.json" for number in count(1))
    starts, file = next(
        (starts, run_dir / name) for starts, name in enumerate(names) if not again or not (run_dir / name).exists()
    )
    try:
        with file.open("x", encoding="utf-8") as opened:
            json.dump(environment(), opened, indent=2)
    except FileExistsError as error:
        raise ConfigError(
            f"{run_dir} already holds a run, and two runs never share a directory. Leave out run_id= and "
            f"hydra.run.dir=, or give names that are not taken. To go on with it: resume={run_dir}."
        ) from error
    results = run_dir / "results.json"
    if results.exists():
        # It says that the run is finished, which it is no longer.
        results.replace(run_dir / f"results-{starts}.json")
    _link_latest(run_dir)
    return lock


def record_request(run_dir: Path, asked: DictConfig, settled: DictConfig) -> None:
    """Write what was asked as Hydra does, but once the request is known to be possible, and what came of it."""
    (run_dir / ".hydra").mkdir(exist_ok=True)
    for name, content in {
        ".hydra/hydra.yaml": HydraConfig.instance().cfg,
        ".hydra/config.yaml": asked,
        ".hydra/overrides.yaml": HydraConfig.get().overrides.task,
        "config.yaml": settled,
    }.items():
        _write(run_dir / name, OmegaConf.to_yaml(content))


def _link_latest(run_dir: Path) -> None:
    latest = PROJECT_ROOT / "logs" / "latest"
    latest.parent.mkdir(parents=True, exist_ok=True)
    if latest.exists() and not latest.is_symlink():
        log.warning("%s is not a link and stays as it is; the newest run is %s", latest, run_dir)
        return
    inside = run_dir.is_relative_to(latest.parent)
    # Replaced in one step: whoever reads the link meanwhile sees the old run or the new one.
    new = latest.with_name(f".latest-{secrets.token_hex(4)}")
    new.symlink_to(run_dir.relative_to(latest.parent) if inside else run_dir, target_is_directory=True)
    new.replace(latest)


def environment() -> dict[str, Any]:
    """Describe what is needed to repeat a run: command, code, versions, host and devices."""
    return {
        "command": mask(shlex.join([sys.executable, *sys.argv])),
        "directory": str(Path.cwd()),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "git_commit": _git("rev-parse", "HEAD"),
        "git_diff": _git("diff", "HEAD"),
        "python": platform.python_version(),
        "versions": {package: version(package) for package in RECORDED_PACKAGES},
        "host": platform.node(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "devices": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())] or ["cpu"],
    }


def _git(*arguments: str) -> str | None:
    """Ask git about the project; None without git or outside a repository of the project's own."""
    command = ["git", "-C", str(PROJECT_ROOT), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return mask(done.stdout.strip()) if done.returncode == 0 else None


def write_json(path: Path, content: dict[str, Any]) -> None:
    _write(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def _write(path: Path, text: str) -> None:
    # In one step: whenever the process is killed, the file is whole, the one before it, or absent.
    unfinished = path.with_name(f".{path.name}.unfinished")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)
