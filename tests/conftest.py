"""Fixtures: `bake` generates, `small_template` wraps the template around a tiny project, `hook` imports a hook."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from cookiecutter.generate import generate_context
from cookiecutter.main import cookiecutter
from cookiecutter.prompt import prompt_for_config
from cookiecutter.utils import create_env_with_context

ROOT = Path(__file__).parents[1]
PROJECT = "<<cookiecutter.project_slug>>"
# What a test gets unless it asks for more: files only.
FILES_ONLY = {"environment": "none", "smoke_test": False, "git_init": False}

FAKE_TRAIN = """
import json, pathlib, sys
run_dir = pathlib.Path(sys.argv[2].removeprefix("hydra.run.dir="))
run_dir.mkdir(parents=True)
(run_dir / "train.log").write_text("trained")
latest = run_dir.parent / "latest"
latest.unlink(missing_ok=True)
latest.symlink_to(run_dir.name)
results = {
    "metrics": {"test/acc": 0.9123456, "test/loss": 0.25},
    "train_samples_per_second": 12345.6,
    "duration_s": 3.21,
    "exports": [{"format": "onnx", "path": "export/model.onnx", "max_difference": 1.5e-7}],
}
(run_dir / "results.json").write_text(json.dumps(results))
"""


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keep the machine's git identity, strictness and home out of every test."""
    for name in [name for name in os.environ if name.startswith(("GIT_", "SCAFFOLD_"))]:
        monkeypatch.delenv(name)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)


@pytest.fixture
def bake(tmp_path: Path) -> Callable[..., Path]:
    """Generate a project into `out` and return its folder; other keywords are answers."""
    config = tmp_path / "cookiecutter.yaml"
    config.write_text(json.dumps({"replay_dir": str(tmp_path / "replay"), "cookiecutters_dir": str(tmp_path)}))

    def generate(
        template: Path = ROOT, out: Path = tmp_path / "out", options: dict[str, Any] | None = None, **answers: Any
    ) -> Path:
        out.mkdir(parents=True, exist_ok=True)
        context = {**FILES_ONLY, **answers}
        result = cookiecutter(
            str(template),
            no_input=True,
            extra_context=context,
            output_dir=str(out),
            config_file=str(config),
            **(options or {}),
        )
        return Path(result)

    return generate


@pytest.fixture
def small_template(tmp_path: Path) -> Path:
    """The real questions, hooks and licences around a project that trains in no time."""
    root = tmp_path / "template"
    for name in ("hooks", "templates"):
        shutil.copytree(ROOT / name, root / name)
    shutil.copy(ROOT / "cookiecutter.json", root)
    project = root / PROJECT
    (project / "<<cookiecutter.package_name>>").mkdir(parents=True)
    (project / "<<cookiecutter.package_name>>" / "__init__.py").write_text("")
    (project / "train.py").write_text(FAKE_TRAIN)
    (project / "requirements.lock").write_text("# nothing\n")
    (project / ".gitignore").write_text("/.venv/\n/logs/\n")
    (project / "README.md").write_text("# << cookiecutter.project_name >>\n\n<< cookiecutter.description >>\n")
    quoted = "".join(
        f"{name}SEPARATOR<< cookiecutter.__{name}_quoted >>\n"
        for name in ("project_name", "description", "author_name", "author_email")
    )
    (project / "answers.toml").write_text(quoted.replace("SEPARATOR", " = "))
    (project / "answers.yaml").write_text(quoted.replace("SEPARATOR", ": "))
    (project / "answers.py").write_text(quoted.replace("SEPARATOR", " = "))
    shutil.copy(ROOT / PROJECT / "LICENSE", project)
    (root / "{{cookiecutter.project_slug}}").symlink_to(PROJECT)
    return root


def answer(**answers: Any) -> dict[str, Any]:
    """Answer the questions as cookiecutter does and return the context for rendering."""
    context = generate_context(str(ROOT / "cookiecutter.json"), extra_context={**FILES_ONLY, **answers})
    return {"cookiecutter": {**prompt_for_config(context, no_input=True), "_output_dir": "/tmp"}}


@pytest.fixture
def hook(tmp_path: Path) -> Callable[..., ModuleType]:
    """Render a hook as cookiecutter does, with the given answers, and import it."""

    def load(name: str, *, cruft: bool = False, **answers: Any) -> ModuleType:
        context = answer(**answers)
        if cruft:
            del context["cookiecutter"]["_output_dir"]
        source = (ROOT / "hooks" / f"{name}.py").read_text(encoding="utf-8")
        path = tmp_path / f"rendered_{name}.py"
        path.write_text(create_env_with_context(context).from_string(source).render(**context), encoding="utf-8")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec
        assert spec.loader
        module = importlib.util.module_from_spec(spec)
        sys.dont_write_bytecode = True
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny project, as the current folder, in a path that needs quoting."""
    folder = tmp_path / "it's ein Prüfstück" / "net"
    (folder / "configs").mkdir(parents=True)
    (folder / "train.py").write_text(FAKE_TRAIN)
    (folder / "requirements.lock").write_text("# nothing\n")
    (folder / ".gitignore").write_text("/.venv/\n/logs/\n")
    monkeypatch.chdir(folder)
    return folder
