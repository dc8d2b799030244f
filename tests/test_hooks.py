"""The hooks, rendered as cookiecutter renders them: smoke test, report, strictness, signals, cruft."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import cruft
import pytest
from conftest import PROJECT, ROOT
from cookiecutter.exceptions import FailedHookException

# Starts a child that does not listen to SIGTERM, as a worker process may not.
DEAF = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('started', flush=True); time.sleep(60)"
)
SLEEPS = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {DEAF!r}]); time.sleep(60)"


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def run_hook(hook, tmp_path: Path, cwd: Path, env: dict[str, str] | None = None, **answers):
    """Render post_gen and run it as cookiecutter does."""
    hook("post_gen_project", **answers)
    return subprocess.run(
        [sys.executable, tmp_path / "rendered_post_gen_project.py"],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def processes_here() -> list[int]:
    """Return the running processes whose working folder is this one, but not the tests' own."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state = (process / "stat").read_text().rsplit(")", 1)[1].split()[0]
            if (process / "cwd").resolve() == Path.cwd() and state != "Z":
                found.append(int(process.name))
    return [pid for pid in found if pid != os.getpid()]


def wait_until(condition, seconds: float = 20) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return bool(condition())


def test_importing_a_hook_does_nothing(hook, project):
    before = files(project)
    hook("pre_gen_project")
    hook("post_gen_project", environment="new", smoke_test=True, git_init=True)
    assert files(project) == before


def test_answers_reach_the_hooks_as_data(hook):
    hostile = "'''\"\"\"\\ \n' + __import__('os').abort() + '"
    assert hook("post_gen_project", author_name=hostile).ANSWERS["author_name"] == hostile
    assert hook("pre_gen_project", author_name=hostile).ANSWERS["author_name"] == hostile


def test_a_smoke_test_verifies_the_project_and_leaves_no_trace(hook, tmp_path, project):
    before = files(project)
    done = run_hook(hook, tmp_path, project, environment="current", smoke_test=True)
    assert done.returncode == 0
    verdict = done.stdout.splitlines()[-1]
    assert verdict.startswith(f"VERIFIED by a smoke test with {sys.executable}")
    for figure in ("test/acc 0.9123", "test/loss 0.25", "3.2 s", "exported to onnx"):
        assert figure in verdict
    assert files(project) == before


def test_a_smoke_test_spares_the_runs_of_a_project_that_exists(hook, project):
    (project / "logs" / "old").mkdir(parents=True)
    (project / "logs" / "old" / "results.json").write_text("mine")
    (project / "logs" / "latest").symlink_to("old")
    before = files(project)
    hook("post_gen_project", environment="current", smoke_test=True).smoke_test(project, sys.executable)
    assert files(project) == before
    assert (project / "logs" / "latest").readlink() == Path("old")


def test_the_smoke_test_runs_offline_with_its_caches_in_its_own_folder(hook, project, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    variables = hook("post_gen_project", environment="new").smoke_variables(project / "run")
    assert variables["WANDB_MODE"] == "offline"
    assert variables["PYTHONDONTWRITEBYTECODE"] == "1"
    assert Path(variables["WANDB_CONFIG_DIR"]).is_relative_to(project / "run")
    assert "PYTHONPATH" not in variables
    assert hook("post_gen_project", environment="current").smoke_variables(project)["PYTHONPATH"] == "/somewhere"


@pytest.mark.parametrize("strict", [False, True])
def test_a_failed_smoke_test_keeps_the_project_and_shows_what_failed(strict, hook, tmp_path, project):
    (project / "train.py").write_text("raise SystemExit('the loss is not a number')")
    env = {"SCAFFOLD_STRICT": "1"} if strict else {}
    done = run_hook(hook, tmp_path, project, env, environment="current", smoke_test=True, git_init=True)
    assert done.returncode == (1 if strict else 0)
    log = project / "logs" / "smoke-test.log"
    assert "the loss is not a number" in log.read_text()
    assert "  | the loss is not a number" in done.stdout
    assert "The smoke test ended with exit code 1." in done.stdout
    assert f"Log: {log}" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("NOT VERIFIED: The smoke test ended")
    assert (project / ".git").is_dir()


def test_the_printed_command_repeats_the_failure(hook, tmp_path, project):
    (project / "train.py").write_text("raise SystemExit('again')")
    done = run_hook(hook, tmp_path, project, environment="current", smoke_test=True)
    (command,) = [line for line in done.stdout.splitlines() if line.startswith("To repeat it: ")]
    again = subprocess.run(
        ["sh", "-c", command.removeprefix("To repeat it: ")], capture_output=True, cwd="/", check=False
    )
    assert again.returncode == 1
    assert again.stderr == b"again\n"


@pytest.mark.parametrize("results", ["", "[]", "{"])
def test_a_run_without_readable_results_is_not_verified(results, hook, project):
    (project / "train.py").write_text(f"import pathlib\np = pathlib.Path('logs/smoke-test'); p.mkdir(parents=True)\n"
                                      f"(p / 'results.json').write_text({results!r})")  # fmt: skip
    module = hook("post_gen_project", environment="current")
    with pytest.raises(module.StepFailed, match=r"no readable results\.json"):
        module.smoke_test(project, sys.executable)


def test_results_with_gaps_are_read_all_the_same(hook):
    read = hook("post_gen_project").read_figures
    assert read({}) == []
    assert read({"metrics": {"test/acc": None}, "exports": [{"format": "onnx", "error": "x"}]}) == ["exported to onnx"]


def test_a_missing_package_is_explained(hook, tmp_path, project):
    (project / "train.py").write_text("import no_such_torch")
    done = run_hook(hook, tmp_path, project, environment="current", smoke_test=True)
    assert "lacks packages: install requirements.lock, or take environment=new" in done.stdout


def test_a_smoke_test_that_hangs_is_stopped_with_all_it_started(hook, project):
    (project / "train.py").write_text(SLEEPS)
    module = hook("post_gen_project", environment="current")
    module.SMOKE_SECONDS = 1
    with pytest.raises(module.StepFailed, match="took longer than 1 s and was stopped"):
        module.smoke_test(project, sys.executable)
    assert (project / "logs" / "smoke-test.log").read_text() == "started\n"
    assert wait_until(lambda: not processes_here())


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_hook_that_is_killed_leaves_no_process(number, hook, tmp_path, project):
    # Without a grandchild: after SIGKILL the hook itself can do nothing, and Linux ends only the direct child.
    (project / "train.py").write_text("import time; print('started', flush=True); time.sleep(60)")
    hook("post_gen_project", environment="current", smoke_test=True)
    log = project / "logs" / "smoke-test.log"
    process = subprocess.Popen(
        [sys.executable, tmp_path / "rendered_post_gen_project.py"], stdout=subprocess.PIPE, text=True
    )
    assert wait_until(lambda: log.exists() and "started" in log.read_text())
    process.send_signal(number)
    output, _ = process.communicate(timeout=20)
    assert wait_until(lambda: not processes_here())
    if number != signal.SIGKILL:
        assert process.returncode == 0
        assert output.splitlines()[-1].startswith("NOT VERIFIED: The smoke test was interrupted")


def test_nothing_is_run_or_said_to_be_verified_without_an_environment(hook, tmp_path, project):
    before = files(project)
    done = run_hook(hook, tmp_path, project, environment="none", smoke_test=True)
    assert done.stdout.splitlines()[-1] == "NOT VERIFIED: no smoke test was run (environment=none)."
    assert "python -m pip install -r requirements.lock" in done.stdout
    assert files(project) == before


def test_the_report_survives_a_terminal_that_knows_only_ascii(hook, tmp_path, project):
    env = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = run_hook(hook, tmp_path, project, env, project_name="Größe 😀", environment="current", smoke_test=True)
    assert done.returncode == 0
    assert "Gr\\xf6\\xdfe \\U0001f600" in done.stdout
    assert "\nVERIFIED" in done.stdout


def test_a_full_disk_is_told_and_the_project_stays(hook, project, monkeypatch, capsys):
    module = hook("post_gen_project", environment="current", smoke_test=True)

    def no_space(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "run_step", no_space)
    assert module.main() == 0
    assert "No space left on device" in capsys.readouterr().out.splitlines()[-1]
    assert (project / "train.py").exists()


def test_pruning_follows_the_table(hook, project):
    module = hook("post_gen_project", logger="csv")
    module.PRUNE = {("logger", "csv"): ["configs", "train.py", "not-there"], ("logger", "wandb"): ["requirements.lock"]}
    module.prune(project)
    assert files(project) == {"requirements.lock", ".gitignore"}


def test_the_next_steps_can_be_pasted(hook, project, monkeypatch):
    module = hook("post_gen_project", environment="current")
    monkeypatch.setenv("PWD", str(project.parents[1]))
    cd, train, test = module.next_steps(project, sys.executable)
    assert subprocess.check_output(["sh", "-c", f"{cd} && pwd"], cwd=project.parents[1], text=True).strip() == str(
        project
    )
    assert train.endswith("train.py")
    assert test.startswith("make test")
    monkeypatch.setenv("PWD", "/elsewhere")
    assert str(project.name) in module.next_steps(project, sys.executable)[0]


def test_the_interpreter_is_spelled_out_only_where_python_is_another_one(hook, project, tmp_path, monkeypatch):
    module = hook("post_gen_project", environment="current")
    for name in ("python", "python3"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert module.next_steps(project, None)[1:] == [f"{sys.executable} train.py", f"make test PYTHON={sys.executable}"]
    monkeypatch.setattr(module.sys, "executable", str(tmp_path / "python3"))
    assert module.next_steps(project, None)[1:] == ["python train.py", "make test"]


def test_under_cruft_nothing_is_installed_run_or_committed(hook, project, capsys):
    before = files(project)
    module = hook("post_gen_project", cruft=True, environment="new", smoke_test=True, git_init=True)
    assert module.main() == 0
    assert "make test" in capsys.readouterr().out
    assert files(project) == before


def git(*arguments: str, cwd: Path) -> str:
    identity = ["-c", "user.name=Tester", "-c", "user.email=tester@example.com"]
    return subprocess.check_output(["git", *identity, *arguments], cwd=cwd, text=True)


def test_cruft_creates_and_updates_a_project(small_template, tmp_path, monkeypatch):
    git("init", "--quiet", cwd=small_template)
    git("add", "--all", cwd=small_template)
    git("commit", "--quiet", "--message=One", cwd=small_template)
    answers = {"environment": "new", "smoke_test": True, "git_init": True, "description": 'A "net"\nof Zoë\'s 😀'}
    project = cruft.create(str(small_template), output_dir=tmp_path, extra_context=answers)
    assert not (project / ".venv").exists()
    assert not (project / ".git").exists()
    git("init", "--quiet", cwd=project)
    git("add", "--all", cwd=project)
    git("commit", "--quiet", "--message=Mine", cwd=project)
    (small_template / PROJECT / "new.txt").write_text("<< cookiecutter.project_slug >>\n")
    git("add", "--all", cwd=small_template)
    git("commit", "--quiet", "--message=Two", cwd=small_template)
    assert cruft.update(project, skip_apply_ask=True)
    assert (project / "new.txt").read_text() == "image-classifier\n"
    assert (
        json.loads((project / ".cruft.json").read_text())["context"]["cookiecutter"]["description"]
        == answers["description"]
    )
    assert {line.split()[-1] for line in git("status", "--short", cwd=project).splitlines()} == {
        "new.txt",
        ".cruft.json",
    }


def test_the_link_for_cruft_points_to_the_project_folder():
    assert (ROOT / "{{cookiecutter.project_slug}}").readlink() == Path(PROJECT)


def test_an_existing_project_is_not_overwritten_and_can_be_generated_again(bake, small_template):
    project = bake(small_template, environment="current", smoke_test=True, git_init=True)
    (project / "mine.py").write_text("mine")
    (project / "README.md").write_text("mine")
    with pytest.raises(Exception, match="already exists"):
        bake(small_template)
    again = {"overwrite_if_exists": True, "skip_if_file_exists": True}
    assert bake(small_template, options=again, environment="current", smoke_test=True, git_init=True) == project
    assert (project / "mine.py").read_text() == (project / "README.md").read_text() == "mine"
    bake(small_template, options={"overwrite_if_exists": True}, environment="current", smoke_test=True)
    assert (project / "mine.py").read_text() == "mine"
    assert not (project / "logs").exists()


def test_a_strict_failure_fails_cookiecutter(bake, small_template, monkeypatch):
    (small_template / PROJECT / "train.py").write_text("raise SystemExit(1)\n")
    kept = bake(small_template, environment="current", smoke_test=True)
    assert (kept / "train.py").exists()
    monkeypatch.setenv("SCAFFOLD_STRICT", "1")
    with pytest.raises(FailedHookException):
        bake(small_template, environment="current", smoke_test=True, project_name="Strict")
    assert not (kept.parent / "strict").exists()
