"""Generates real projects and holds them to their own format, lint, types and tests."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import answer
from cookiecutter.exceptions import FailedHookException
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

ROOT = Path(__file__).parents[1]
CHOICES = {
    question: choices
    for question, choices in json.loads((ROOT / "cookiecutter.json").read_text(encoding="utf-8")).items()
    if isinstance(choices, list)
}
VARIED = {
    "project_name": 'Wörter & "Zeichen" {{}} 😀 über alle Grenzen',
    "project_slug": "a-slug-that-is-just-about-as-long-as-anyone-types",
    "package_name": "a_package_that_is_just_about_as_long_as_one_types",
    "description": "Quotes \" and ', braces {} {{ }} ${x}, a backslash \\ and 😀.",
    "author_name": 'Zoë "Z" O\'Brien\\',
    "license": "Apache-2.0",
    "logger": "csv",
}


def run(project: Path, *arguments: str, seconds: float = 1500) -> subprocess.CompletedProcess[str]:
    """Run the tests' interpreter in a project; the result keeps what was printed."""
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, cwd=project, text=True, capture_output=True, stdin=subprocess.DEVNULL, timeout=seconds, check=False
    )


def succeeds(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def text_files(project: Path) -> list[Path]:
    return [path for path in project.rglob("*") if path.is_file() and ".git/" not in path.as_posix()]


def formatted_and_linted(project: Path) -> None:
    succeeds(run(project, "-m", "ruff", "format", "--check", "."))
    succeeds(run(project, "-m", "ruff", "check", "."))


@pytest.mark.parametrize(
    "answers",
    [{}, VARIED, {"project_slug": "ab"}, *({name: choice} for name, choices in CHOICES.items() for choice in choices)],
    ids=lambda answers: next(iter(answers.items()), ("defaults", ""))[1][:12] or "defaults",
)
def test_every_choice_renders_whole_formatted_and_linted(bake: Callable[..., Path], answers: dict[str, Any]) -> None:
    project = bake(**{**answers, "environment": "none"})
    for path in text_files(project):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"<<\s*cookiecutter|# <[%#]", text), f"a delimiter is left in {path}"
        assert text.endswith("\n"), f"{path} does not end with a newline"
        assert "\t" not in text or path.name == "Makefile", f"{path} holds a tab"
    formatted_and_linted(project)


def test_a_project_holds_exactly_these_files(bake: Callable[..., Path]) -> None:
    project = bake()
    found = {path.relative_to(project).as_posix() for path in text_files(project)}
    package = {path.removeprefix("image_classifier/") for path in found if path.startswith("image_classifier/")}
    assert package == {
        *(
            "__init__.py",
            "building.py",
            "checkpoints.py",
            "comparison.py",
            "configuration.py",
            "console.py",
            "contradictions.py",
            "evaluation.py",
        ),
        *("figures.py", "findings.py", "inference.py", "machine.py", "masking.py", "metrics_table.py", "profiling.py"),
        *("request.py", "resuming.py", "run_directory.py", "training.py"),
        *("callbacks/__init__.py", "callbacks/averaging.py", "callbacks/end_of_run.py", "callbacks/throughput.py"),
        *("callbacks/last_checkpoint.py", "callbacks/progress_bar.py", "callbacks/signals.py"),
        *("data/__init__.py", "data/augmentation.py", "data/cache.py", "data/checks.py", "data/datamodule.py"),
        *("data/digits.py", "data/images.py", "data/image_files.py", "data/listing.py", "data/loading.py"),
        *("data/processes.py", "data/spec.py"),
        *("data/splitting.py", "data/statistics.py", "data/synthetic.py", "data/torchvision_sets.py"),
        *("export/__init__.py", "export/callback.py", "export/command.py", "export/deployed.py", "export/parity.py"),
        *("export/latency.py", "export/writing.py", "export/formats/__init__.py", "export/formats/onnx.py"),
        *("export/formats/safetensors.py", "export/formats/torch_export.py", "export/formats/torchscript.py"),
        *("loggers/__init__.py", "loggers/wandb.py"),
        *("models/__init__.py", "models/image_classifier.py", "models/networks.py", "models/preprocess.py"),
        *("models/pretrained.py", "models/stage_metrics.py", "models/switches.py", "models/timm_net.py"),
        *("optim/parameter_groups.py",),
        *("optim/__init__.py", "optim/schedules.py"),
    }
    top = {path for path in found if not path.startswith(("image_classifier/", "configs/", "tests/"))}
    assert top == {
        *("train.py", "eval.py", "export.py", "predict.py", "Makefile", "README.md", "LICENSE", "pyproject.toml"),
        *("requirements.lock", ".gitignore", ".pre-commit-config.yaml", ".github/workflows/test.yml"),
        "scripts/train.sbatch",
    }


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    answers=st.fixed_dictionaries(
        {name: st.sampled_from(choices) for name, choices in CHOICES.items() if name != "environment"},
        optional={
            # Answers given with --no-input are rendered themselves: a delimiter in one is cookiecutter's to refuse.
            name: st.text(st.characters(codec="utf-8", exclude_categories=["C", "Zl", "Zp"], exclude_characters="<"))
            for name in ("project_name", "description", "author_name")
        },
    )
)
def test_random_answers_give_a_project_that_parses(
    answers: dict[str, str], bake: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> None:
    try:
        project = bake(out=tmp_path_factory.mktemp("random"), **answers)
    except FailedHookException:
        event("refused")
        return
    settings_file = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))
    context = answer(**answers)["cookiecutter"]
    assert settings_file["project"]["description"] == context["description"]
    assert settings_file["project"]["authors"][0]["name"] == context["author_name"]
    for path in (project / "configs").rglob("*.yaml"):
        yaml.safe_load(path.read_text(encoding="utf-8"))
    for path in project.rglob("*.py"):
        compile(path.read_text(encoding="utf-8"), str(path), "exec")


def test_workflows_and_hooks_of_git_are_valid(bake: Callable[..., Path]) -> None:
    project = bake()
    workflows = [str(folder / ".github" / "workflows" / "test.yml") for folder in (ROOT, project)]
    tools = Path(sys.executable).parent
    schema = [str(tools / "check-jsonschema"), "--builtin-schema", "vendor.github-workflows", *workflows]
    subprocess.run(schema, check=True, capture_output=True)
    audit = subprocess.run(
        [str(tools / "zizmor"), "--offline", *workflows], text=True, capture_output=True, check=False
    )
    assert audit.returncode == 0, audit.stdout + audit.stderr
    succeeds(run(project, "-m", "pre_commit", "validate-config", ".pre-commit-config.yaml"))


@pytest.mark.parametrize("logger", CHOICES["logger"])
def test_the_chosen_logger_is_the_default(bake: Callable[..., Path], logger: str) -> None:
    page = yaml.safe_load((bake(logger=logger) / "configs" / "train.yaml").read_text(encoding="utf-8"))
    assert {"optional logger": logger} in page["defaults"]


def test_package_and_configs_parse_before_rendering() -> None:
    project = ROOT / "<<cookiecutter.project_slug>>"
    for path in (project / "<<cookiecutter.package_name>>").rglob("*.py"):
        compile(path.read_text(encoding="utf-8"), str(path), "exec")
    for path in (project / "configs").rglob("*.yaml"):
        assert isinstance(yaml.safe_load(path.read_text(encoding="utf-8")), dict), path


@pytest.mark.slow
def test_the_default_project_passes_its_own_types_and_every_test(bake: Callable[..., Path]) -> None:
    project = bake()
    succeeds(run(project, "-m", "mypy"))
    succeeds(run(project, "-m", "pytest", "-n", "2", "-p", "no:cacheprovider"))


@pytest.mark.slow
def test_a_fully_varied_project_passes_its_own_types_and_tests(bake: Callable[..., Path]) -> None:
    project = bake(**VARIED)
    succeeds(run(project, "-m", "mypy"))
    # The rooms in which a name or an answer could matter; the others were tested above.
    rooms = [f"tests/test_{room}.py" for room in ("configs", "loggers", "readme", "request", "rooms", "training")]
    succeeds(run(project, "-m", "pytest", "-n", "2", "-p", "no:cacheprovider", "-m", "not slow", *rooms))


@pytest.mark.slow
def test_the_current_environment_is_proven_and_committed(
    bake: Callable[..., Path], capfd: pytest.CaptureFixture[str]
) -> None:
    project = bake(environment="current", smoke_test=True, git_init=True)
    printed = capfd.readouterr().out
    accuracy = re.search(r"VERIFIED by a smoke test with .*: test/acc ([\d.]+);", printed)
    assert accuracy, printed
    assert float(accuracy[1]) > 0.9
    assert "exported to onnx" in printed
    assert not (project / "logs").exists()
    git = ["git", "-C", str(project)]
    assert subprocess.check_output([*git, "status", "--porcelain", "--ignored"], text=True) == ""
    assert subprocess.check_output([*git, "rev-list", "--count", "HEAD"], text=True) == "1\n"
    committed = subprocess.check_output([*git, "ls-files"], text=True).splitlines()
    assert {"configs/data/digits.yaml", "requirements.lock", "image_classifier/data/digits.py"} <= set(committed)


@pytest.mark.slow
def test_a_new_environment_is_built_proven_and_committed_without_torch_at_hand(tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", str(bare)], check=True)
    python = str(bare / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "--quiet", "cookiecutter>=2.6,<3"], check=True)
    done = subprocess.run(
        [python, "-m", "cookiecutter", str(ROOT), "--no-input", "--output-dir", str(tmp_path), "environment=new"],
        text=True, capture_output=True, stdin=subprocess.DEVNULL, timeout=1500, check=False,
    )  # fmt: skip
    succeeds(done)
    project = tmp_path / "image-classifier"
    assert f"VERIFIED by a smoke test with {project}/.venv/bin/python" in done.stdout, done.stdout[-3000:]
    assert subprocess.check_output(["git", "-C", str(project), "status", "--porcelain"], text=True) == ""
    succeeds(subprocess.run(["make", "smoke"], cwd=project, text=True, capture_output=True, check=False))


@pytest.mark.slow
def test_the_demo_reaches_its_accuracy_and_both_models_agree() -> None:
    done = run(ROOT, "scripts/demo.py")
    succeeds(done)
    accuracy = re.search(r"test accuracy ([\d.]+)", done.stdout)
    assert accuracy, done.stdout
    assert float(accuracy[1]) >= 0.97
    assert "the same class for 10 of 10 images" in done.stdout
