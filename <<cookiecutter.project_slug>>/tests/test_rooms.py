"""A room that nobody needs can be deleted together with its door, configs and test; the rest goes on."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

REMAINING = ("tests/test_request.py", "tests/test_configs.py", "tests/test_inference.py")


@pytest.fixture
def without(copy_project, tmp_path):
    """Copy the project and delete files and folders from it."""

    def delete(*patterns):
        clone = copy_project(tmp_path / "clone")
        for pattern in patterns:
            found = list(clone.glob(pattern))
            assert found != [], pattern
            subprocess.run(["rm", "-r", *found], check=True)
        return clone

    return delete


def passes(clone, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-m", "not slow", f"--basetemp={tmp_path / 'nested'}", *REMAINING],
        cwd=clone,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]


def trains(clone, tmp_path):
    command = [sys.executable, "train.py", "model=mlp", "trainer.max_epochs=1", f"hydra.run.dir={tmp_path / 'run'}"]
    done = subprocess.run(command, cwd=clone, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {path.name for path in (tmp_path / "run").iterdir()}


def test_the_project_goes_on_without_its_export_room(without, tmp_path):
    clone = without("export.py", "configs/export.yaml", "configs/export", "*/export", "tests/test_export*.py")
    left = trains(clone, tmp_path)
    assert {"results.json", "checkpoints"} <= left
    assert "export" not in left
    passes(clone, tmp_path)


def test_the_project_goes_on_without_its_logger_room(without, tmp_path):
    clone = without("configs/logger/wandb.yaml", "*/loggers", "tests/test_loggers.py")
    page = clone / "configs" / "train.yaml"
    lines = page.read_text(encoding="utf-8").splitlines(keepends=True)
    chosen = ["  - optional logger: csv\n" if "optional logger:" in line else line for line in lines]
    page.write_text("".join(chosen), encoding="utf-8")
    left = trains(clone, tmp_path)
    assert {"results.json", "metrics.csv"} <= left
    assert "wandb" not in left
    passes(clone, tmp_path)


@pytest.mark.parametrize("group", ["callbacks", "debug"])
def test_a_run_goes_on_without_an_optional_group(without, tmp_path, group):
    clone = without(f"configs/{group}")
    assert "results.json" in trains(clone, tmp_path)
