"""What every test file uses: configurations, doors in a process of their own or in this one, one trained run.

The project's own logs/ is never touched: doors run in a copy of the project, and this process writes into the copy.
"""

import contextlib
import copy
import functools
import gc
import io
import json
import logging
import os
import runpy
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any
from unittest.mock import patch

import hydra
import pytest
from hydra import initialize_config_dir
from hydra._internal.hydra import Hydra
from omegaconf import DictConfig

from << cookiecutter.package_name >> import configuration as shared
from << cookiecutter.package_name >>.request import switch_off

ROOT = Path(__file__).parents[1]
PACKAGE = "<< cookiecutter.package_name >>"

# On the CPU a test means the same on every machine. `CUDA_VISIBLE_DEVICES=0 make test` tries a GPU.
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
# The tensors are tiny: on a busy machine several threads wait for each other longer than they compute.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# A full collection walks over all that torch has loaded, which takes longer than many a test.
gc.set_threshold(100_000, 50, 100)

# What would tie a test to the shell, the job or the account it runs in.
FOREIGN = (
    *("HYDRA_", "LOCAL_RANK", "MASTER_", "NODE_RANK", "PL_", "RANK", "SLURM_", "TORCHELASTIC_", "TRAINING_RUN_DIR"),
    *("WANDB_", "WORLD_SIZE"),
)

Door = Callable[..., CompletedProcess[str]]


@dataclass(frozen=True)
class TrainedRun:
    path: Path
    done: CompletedProcess[str]
    results: dict[str, Any]


@pytest.fixture(scope="session")
def own_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Take foreign variables and credentials out of this process and of those it starts."""
    account = tmp_path_factory.mktemp("account")
    with patch.dict(os.environ):
        for name in [name for name in os.environ if name.startswith(FOREIGN)]:
            del os.environ[name]
        for name in ("WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR"):
            os.environ[name] = str(account)
        os.environ["NETRC"] = str(account / "netrc")
        yield


@pytest.fixture(scope="session")
def copy_project() -> Callable[[Path], Path]:
    """Copy what a clone of the project holds, without logs, data and environments."""

    def copy(target: Path) -> Path:
        target.mkdir(parents=True, exist_ok=True)
        for name in (PACKAGE, "configs", "scripts", "tests"):
            shutil.copytree(ROOT / name, target / name, ignore=shutil.ignore_patterns("__pycache__"))
        for file in (*ROOT.glob("*.py"), *(ROOT / name for name in ("pyproject.toml", "Makefile", "README.md"))):
            shutil.copy(file, target)
        return target

    return copy


@pytest.fixture(scope="session", autouse=True)
def project(
    tmp_path_factory: pytest.TempPathFactory, own_environment: None, copy_project: Callable[[Path], Path]
) -> Iterator[Path]:
    """Give a copy of the project, which this process takes for the project, too."""
    from << cookiecutter.package_name >> import run_directory

    clone = copy_project(tmp_path_factory.mktemp("projects") / "a prüject")
    with patch.object(shared, "PROJECT_ROOT", clone), patch.object(run_directory, "PROJECT_ROOT", clone):
        yield clone


@pytest.fixture(scope="session", autouse=True)
def quick_hydra() -> Iterator[None]:
    """Do not compose every run once more to read its hydra.mode, which no file sets."""
    with patch.object(Hydra, "get_mode", return_value=None):
        yield


@functools.cache
def composed(*overrides: str) -> DictConfig:
    with initialize_config_dir(config_dir=str(shared.CONFIG_DIR), version_base="1.3"):
        return hydra.compose("train", switch_off(list(overrides)))


@pytest.fixture
def compose() -> Callable[..., DictConfig]:
    """Compose configs/train.yaml: `compose("trainer=ddp", "export=null")`."""
    return lambda *overrides: copy.deepcopy(composed(*overrides))


@pytest.fixture(scope="session")
def start_door(project: Path) -> Door:
    def start(name: str, *arguments: object, cwd: Path, **environment: str) -> CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(project / f"{name}.py"), *map(str, arguments)],
            cwd=cwd,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=300,
            check=False,
        )

    return start


@pytest.fixture
def door(start_door: Door, tmp_path: Path) -> Door:
    """Run a door in a process of its own, from an empty folder: `door("train", "seed=1", WANDB_MODE="offline")`."""
    empty = tmp_path / "where it is typed"
    empty.mkdir()

    def run(name: str, *arguments: object, cwd: Path = empty, **environment: str) -> CompletedProcess[str]:
        return start_door(name, *arguments, cwd=cwd, **environment)

    return run


@pytest.fixture(scope="session")
def start_here(project: Path) -> Door:
    def start(name: str, *arguments: object, cwd: Path) -> CompletedProcess[str]:
        out, err, code = io.StringIO(), io.StringIO(), 0
        command = [str(ROOT / f"{name}.py"), *map(str, arguments)]
        root = logging.getLogger()
        handlers, level = root.handlers[:], root.level
        shared.new_run_id.cache_clear()
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            contextlib.chdir(cwd),
            patch.dict(os.environ),
            patch.object(sys, "argv", command),
            warnings.catch_warnings(),
        ):
            try:
                runpy.run_path(command[0], run_name="__main__")
            except SystemExit as leaving:
                code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
            finally:
                logging.captureWarnings(False)
                for handler in set(root.handlers) - set(handlers):
                    handler.close()
                root.handlers[:], root.level = handlers, level
        return CompletedProcess(command, code, out.getvalue(), err.getvalue())

    return start


@pytest.fixture
def here(start_here: Door, tmp_path: Path) -> Door:
    """Run a door in this process, where torch is loaded already: `here("train", "seed=1")`."""

    def run(name: str, *arguments: object, cwd: Path = tmp_path) -> CompletedProcess[str]:
        return start_here(name, *arguments, cwd=cwd)

    return run


@pytest.fixture(scope="session")
def trained_run(start_here: Door, tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    """Train the default model for three epochs, into a folder with a blank and an umlaut: what all tests read."""
    path = tmp_path_factory.mktemp("trained") / "a rün"
    done = start_here("train", f"hydra.run.dir='{path}'", "trainer.max_epochs=3", cwd=path.parent)
    assert done.returncode == 0, done.stdout + done.stderr
    return TrainedRun(path, done, json.loads((path / "results.json").read_text(encoding="utf-8")))
