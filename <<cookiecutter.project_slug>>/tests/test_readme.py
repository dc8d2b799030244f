"""What README.md tells a reader to type works."""

import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from << cookiecutter.package_name >>.request import check, single_requests, switch_off

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def commands():
    """Give the commands in code blocks and in running text, less those that show a form: [overrides], <name>, PATH."""
    blocks = re.findall(r"^```bash\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    spans = re.findall(r"`([^`\n]+)`", README)
    lines = [line.partition(" #")[0].strip() for block in blocks for line in block.splitlines()]
    whole = [line for line in [*lines, *spans] if not re.search(r"[<>]|\[[a-z]+\]|PATH|MODEL|INPUT|DIR\b", line)]
    return list(dict.fromkeys(line for line in whole if line.startswith(("python ", "make "))))


def started_by(*beginnings):
    return [command for command in commands() if command.startswith(beginnings)]


@pytest.fixture
def place(trained_run, tmp_path):
    """Give a folder in which logs/latest is a run and samples a folder of pictures."""
    (tmp_path / "logs").mkdir()
    shutil.copytree(trained_run.path, tmp_path / "logs" / "latest")
    (tmp_path / "samples").mkdir()
    Image.new("L", (8, 8), 128).save(tmp_path / "samples" / "grey.png")
    return tmp_path


def test_the_readme_shows_every_door():
    shown = {shlex.split(command)[1] for command in started_by("python ")}
    assert {"train.py", "eval.py", "predict.py"} <= shown
    assert len(started_by("python train.py")) >= 5
    assert {"make setup", "make smoke", "make test", "make test-all", "make lint"} <= set(started_by("make "))


@pytest.mark.parametrize("command", started_by("python train.py"))
def test_every_training_command_is_a_right_request(command, here):
    arguments = shlex.split(command)[2:]
    if {"--help", "--cfg"} & set(arguments):
        done = here("train", *arguments)
        assert done.returncode == 0
        assert "trainer" in done.stdout
        return
    overrides = switch_off([argument for argument in arguments if argument != "-m"])
    requests = list(single_requests(overrides, multirun="-m" in arguments))
    assert len(requests) == (max(argument.count(",") for argument in arguments) + 1 if "-m" in arguments else 1)
    for request in requests:
        check("train", request)


@pytest.mark.parametrize("command", started_by("python eval.py", "python export.py", "python predict.py"))
def test_every_command_on_a_run_works(command, here, place):
    door, *arguments = shlex.split(command)[1:]
    done = here(door.removesuffix(".py"), *arguments, cwd=place)
    assert done.returncode == 0, done.stdout + done.stderr
    written = {"eval.py": "logs/latest/eval-*/results.json", "export.py": "**/export.json", "predict.py": "*.csv"}
    assert list(place.glob(written[door])) != []


# The module is loaded already; it is run a second time under its own name.
@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
@pytest.mark.parametrize("command", started_by("python -m "))
def test_every_module_that_is_run_works(command, tmp_path, monkeypatch):
    module, *arguments = shlex.split(command)[2:]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [module, *arguments])
    runpy.run_module(module, run_name="__main__")
    assert len(list((tmp_path / arguments[0]).glob("*.png"))) == 10


@pytest.mark.parametrize("command", started_by("make "))
def test_every_target_exists(command):
    done = subprocess.run([*shlex.split(command), "--dry-run"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout != ""


def test_every_file_that_the_readme_names_exists():
    named = re.findall(r"`((?:configs|tests|\w+)/[\w./-]+|\w+\.(?:py|lock))`", README)
    places = ("", "*/", "*/*/")
    missing = {name for name in named if not any(list(ROOT.glob(f"{place}{name}")) for place in places)}
    assert len(named) > 5
    assert missing == set()
