"""Proves a new project: environment, smoke test, first commit, next steps. Touches nothing outside its folder.

Cookiecutter renders this file and runs it inside the project, perhaps for the second time. Standard library only,
because cookiecutter often lives in an interpreter of its own.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ANSWERS: dict[str, Any] = json.loads(r"""<< cookiecutter | tojson >>""")

# What `requires-python` in the project's pyproject.toml allows: best first, and as uv reads it.
PYTHONS, REQUIRES_PYTHON = ("3.13", "3.12", "3.11"), ">=3.11,<3.14"
SETUP_SECONDS, SMOKE_SECONDS = 2 * 60 * 60, 10 * 60
SMOKE_DIR = "logs/smoke-test"
# Paths that a project does not need, by (question, answer).
PRUNE: dict[tuple[str, Any], list[str]] = {}
# Written last, with the hash of the lock: an environment without it was interrupted, and is built anew.
MARKER = ".installed"
# Variables that send an installation, or the imports of a new environment, somewhere else.
STRAY = {"CONDA_PREFIX", "PIP_PREFIX", "PIP_REQUIRE_VIRTUALENV", "PIP_TARGET", "PYTHONHOME", "PYTHONPATH"}
STRAY |= {"UV_PROJECT_ENVIRONMENT", "UV_PYTHON", "UV_SYSTEM_PYTHON", "UV_TARGET", "VIRTUAL_ENV"}
# An index that does not answer is given up after two tries: within a minute, whatever the machine's own settings.
TIMEOUT, RETRIES = "15", "1"
BY_HAND = ["python3 -m venv .venv", "source .venv/bin/activate", "python -m pip install -r requirements.lock"]


class StepFailed(Exception):
    """What failed and why, with its log and the command that repeats it."""

    def __init__(self, what: str, log: Path | None = None, repeat: str = "") -> None:
        super().__init__(what)
        self.log, self.repeat = log, repeat


def main() -> int:
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace", line_buffering=True)
    project = Path.cwd()
    prune(project)
    # Cookiecutter sets `_output_dir`. Cruft, which also renders into temporary folders to compare them, does not.
    if "_output_dir" not in ANSWERS:
        print("Under cruft nothing is installed, run or committed. By hand:", *BY_HAND, "make test", sep="\n  ")
        return 0
    stop_like_ctrl_c()
    failure, figures, python = None, [], None
    try:
        python = choose_python(project)
        if python and ANSWERS["smoke_test"]:
            figures = smoke_test(project, python)
    except StepFailed as error:
        failure = error
    except (OSError, KeyboardInterrupt) as error:
        failure = StepFailed(f"The set-up was stopped: {error or 'interrupted'}")
    notes = make_repository(project) if ANSWERS["git_init"] else []
    print(*report(project, python, failure, figures, notes), sep="\n")
    return 1 if failure and os.environ.get("SCAFFOLD_STRICT") == "1" else 0


def prune(project: Path) -> None:
    """Remove what the answers leave without a use."""
    for (question, answer), paths in PRUNE.items():
        for path in paths if ANSWERS[question] == answer else []:
            remove(project / path)


def remove(path: Path) -> None:
    """Remove a file, a link or a folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def tidy_logs(log: Path) -> None:
    """Remove a log that nobody needs any more, and its folder if that was all."""
    remove(log)
    with contextlib.suppress(OSError):
        log.parent.rmdir()


def run_step(name: str, command: list[str], env: dict[str, str], log: Path, seconds: float, show: bool = False) -> None:
    """Run a command in the project with its output in `log`; raise StepFailed unless it ends well and in time.

    It gets a process group of its own, of which nothing is left afterwards, however it ends.
    """
    repeat = f"cd {shlex.quote(str(Path.cwd()))} && {shlex.join(command)}"
    log.parent.mkdir(exist_ok=True)
    with log.open("ab") as sink, log.open(encoding="utf-8", errors="replace") as news:
        news.seek(0, os.SEEK_END)
        streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": sink, "stderr": subprocess.STDOUT}
        try:
            process = subprocess.Popen(command, env=env, start_new_session=True, preexec_fn=die_with_parent, **streams)
        except OSError as error:
            raise StepFailed(f"{name} could not start: {error}", log, repeat) from error
        reason, end = f"took longer than {seconds:.0f} s and was stopped", time.monotonic() + seconds
        try:
            while process.poll() is None and time.monotonic() < end:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=0.2)
                if show:
                    print(news.read(), end="", flush=True)
        except KeyboardInterrupt:
            reason = "was interrupted"
        finally:
            code = process.poll()
            stop(process)
    if code != 0:
        raise StepFailed(f"{name} {reason if code is None else f'ended with exit code {code}'}", log, repeat)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process and whatever it started."""
    with contextlib.suppress(ProcessLookupError):
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=5)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Let Linux signal this process when its parent is gone; elsewhere do nothing."""
    with contextlib.suppress(Exception):
        import ctypes

        ctypes.CDLL(None).prctl(1, number)  # 1 is PR_SET_PDEATHSIG.


def stop_like_ctrl_c() -> None:
    """Make SIGTERM, SIGHUP and the death of cookiecutter end the running step as Ctrl-C does."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    die_with_parent(signal.SIGTERM)


def capture(command: list[str], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a short command and return its result with what it printed."""
    streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "capture_output": True}
    return subprocess.run(command, env=env, timeout=120, encoding="utf-8", errors="replace", check=False, **streams)


def choose_python(project: Path) -> str | None:
    """Return the interpreter of the project, built where that was asked for, or None."""
    if ANSWERS["environment"] == "new":
        return build_environment(project)
    return sys.executable if ANSWERS["environment"] == "current" else None


def build_environment(project: Path) -> str:
    """Build `.venv` from requirements.lock, whole or not at all, and return its interpreter."""
    venv, log = project / ".venv", project / "logs" / "setup.log"
    python, digest = (
        str(venv / "bin" / "python"),
        hashlib.sha256((project / "requirements.lock").read_bytes()).hexdigest(),
    )
    if (venv / MARKER).is_file() and (venv / MARKER).read_text() == digest and Path(python).exists():
        print(f"{venv} is complete and up to date.")
        return python
    remove(venv)
    remove(log)
    uv = shutil.which("uv")
    base = find_python("sys" if uv else "venv, ensurepip") or (uv and REQUIRES_PYTHON)
    if not base:
        wanted = f"Python {', '.join(PYTHONS)} with `venv` and `ensurepip` (Debian: apt install python3-venv), or uv"
        raise StepFailed(f"The environment needs {wanted}, on the PATH")
    install = [python, "-m", "pip", "install", "--timeout", TIMEOUT, "--retries", RETRIES, "-r", "requirements.lock"]
    commands = [[base, "-m", "venv", ".venv"], install]
    if uv:
        install = [uv, "pip", "install", "--python", python, "--compile-bytecode", "-r", "requirements.lock"]
        commands = [[uv, "venv", "--python", base, ".venv"], install]
    print(f"Installing requirements.lock into {venv} with {'uv' if uv else 'pip'}. This takes minutes ...")
    try:
        for command in commands:
            run_step("The installation", command, setup_variables(), log, SETUP_SECONDS, show=True)
        (venv / MARKER).write_text(digest)
    except BaseException as error:
        remove(venv)
        if isinstance(error, StepFailed):
            error.repeat = " && ".join([f"cd {shlex.quote(str(project))}", *map(shlex.join, commands)])
        raise
    tidy_logs(log)
    return python


def find_python(modules: str) -> str | None:
    """Find an interpreter of an allowed version that can import `modules`: this one, else one on the PATH."""
    question = f"import sys, {modules}; print('%d.%d' % sys.version_info[:2])"
    for candidate in [sys.executable, *(shutil.which(f"python{version}") for version in PYTHONS)]:
        # Asked by running it: a version manager's stand-in may exist without the interpreter behind it.
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            if candidate and capture([candidate, "-c", question], setup_variables()).stdout.strip() in PYTHONS:
                return candidate
    return None


def setup_variables() -> dict[str, str]:
    """Return the variables for an installation: into this environment, soon given up, without a question."""
    variables = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", "PIP_USER": "0"}
    variables |= {"UV_HTTP_TIMEOUT": TIMEOUT, "UV_HTTP_RETRIES": RETRIES}
    if not os.access(Path("~").expanduser(), os.W_OK):
        variables["UV_NO_CACHE"] = "1"
    return {key: value for key, value in variables.items() if key not in STRAY}


def smoke_test(project: Path, python: str) -> list[str]:
    """Train, test and export for a moment, offline; return the figures and leave no file of the run."""
    log, run_dir, latest = project / f"{SMOKE_DIR}.log", project / SMOKE_DIR, project / "logs" / "latest"
    remove(log)
    remove(run_dir)
    before, previous = listing(project), latest.readlink() if latest.is_symlink() else None
    command = [python, "train.py", "debug=smoke", f"hydra.run.dir={SMOKE_DIR}"]
    print("Smoke test: a tiny training run, offline. About half a minute ...")
    run_step("The smoke test", command, smoke_variables(run_dir), log, SMOKE_SECONDS)
    try:
        figures = read_figures(json.loads((run_dir / "results.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, AttributeError) as error:
        repeat = f"cd {shlex.quote(str(project))} && {shlex.join(command)}"
        raise StepFailed(f"The smoke test left no readable results.json: {error}", log, repeat) from error
    for path in sorted(listing(project) - before):
        remove(path)
    if previous:
        remove(latest)
        latest.symlink_to(previous)
    tidy_logs(log)
    return figures


def smoke_variables(run_dir: Path) -> dict[str, str]:
    """Return variables that keep a run offline, and its caches inside the run's own folder."""
    stray = STRAY if ANSWERS["environment"] == "new" else set()
    caches = ("MPLCONFIGDIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR", "XDG_CACHE_HOME")
    offline = {"HF_HUB_OFFLINE": "1", "WANDB_MODE": "offline", "WANDB_SILENT": "true", "PYTHONDONTWRITEBYTECODE": "1"}
    kept = {key: value for key, value in os.environ.items() if key not in stray}
    return {**kept, **dict.fromkeys(caches, str(run_dir / "caches")), **offline}


def listing(project: Path) -> set[Path]:
    """Return the first two levels of a project: as deep as a run may write into folders it did not make."""
    return {*project.glob("*"), *project.glob("*/*")}


def read_figures(results: dict[str, Any]) -> list[str]:
    """Put the main results of a run into words."""
    metrics = results.get("metrics") or {}
    figures = [f"{name} {metrics[name]:.4g}" for name in ("test/acc", "test/loss") if metrics.get(name) is not None]
    if results.get("duration_s") is not None:
        figures.append(f"{results['duration_s']:.1f} s")
    for export in results.get("exports") or []:
        difference = export.get("max_difference")
        parity = "" if difference is None else f", at most {difference:.1g} away from the checkpoint"
        figures.append(f"exported to {export['format']}{parity}")
    return figures


def make_repository(project: Path) -> list[str]:
    """Make a repository with one commit unless there is one already; return notes on what was left undone."""
    by_hand = "git init && git add --all && git commit -m 'First commit'"
    if (project / ".git").exists():
        return ["git: the project is a repository already and was left alone."]
    outer = next((folder for folder in project.parents if (folder / ".git").exists()), None)
    if outer:
        return [f"git: {outer} is a repository, so none was made inside it. Commit the project there, or: {by_hand}"]
    if not shutil.which("git"):
        return [f"git: not found. Once it is installed: {by_hand}"]
    # Inside a git hook, GIT_DIR, GIT_INDEX_FILE and others point to the repository that runs it.
    own = ("GIT_AUTHOR_", "GIT_COMMITTER_", "GIT_CONFIG_")
    env = {key: value for key, value in os.environ.items() if not key.startswith("GIT_") or key.startswith(own)}
    # A personal ignore list with `data/` would drop configs/data/ from the first commit.
    options = [
        "init.defaultBranch=main",
        "commit.gpgsign=false",
        f"core.excludesFile={os.devnull}",
        f"core.hooksPath={os.devnull}",
    ]
    try:
        for key, answer in {"user.name": "author_name", "user.email": "author_email"}.items():
            if not capture(["git", "config", key], env).stdout.strip():
                options.append(f"{key}={ANSWERS[answer]}")
        git = ["git", *(part for option in options for part in ("-c", option))]
        message = " ".join(f"--message=Start {ANSWERS['project_name']}".split())
        for arguments in (
            ["init", "--quiet"],
            ["symbolic-ref", "HEAD", "refs/heads/main"],  # `init -b` needs git 2.28.
            ["add", "--all"],
            ["commit", "--quiet", "--no-verify", message],
        ):
            done = capture([*git, *arguments], env)
            if done.returncode:
                reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
                return [f"git: `git {arguments[0]}` failed ({reason}). Then: {by_hand}"]
    except (OSError, subprocess.SubprocessError) as error:
        return [f"git: {error}. Then: {by_hand}"]
    return []


def next_steps(project: Path, python: str | None) -> list[str]:
    """Return the commands to type now, in the folder where cookiecutter was started."""
    start, interpreter = Path(os.environ.get("PWD", "/")), "python"
    steps = [f"cd {shlex.quote(str(project.relative_to(start) if start in project.parents else project))}"]
    if ANSWERS["environment"] == "current":
        on_path = Path(shutil.which("python") or "/").parent == Path(sys.executable).parent
        interpreter = "python" if on_path else shlex.quote(sys.executable)
    else:
        steps += ["source .venv/bin/activate"] if python else BY_HAND
    return [*steps, f"{interpreter} train.py", "make test" + f" PYTHON={interpreter}" * (interpreter != "python")]


def report(
    project: Path, python: str | None, failure: StepFailed | None, figures: list[str], notes: list[str]
) -> list[str]:
    """Return the closing lines: figures or failure, notes, what to type next, and the verdict."""
    verdict = f"VERIFIED by a smoke test with {python}: {'; '.join(figures)}."
    if not (python and ANSWERS["smoke_test"]):
        verdict = f"NOT VERIFIED: no smoke test was run ({'smoke_test=false' if python else 'environment=none'})."
    lines = []
    if failure:
        verdict = f"NOT VERIFIED: {failure}. The files are complete, but nothing has proven them yet."
        log = failure.log if failure.log and failure.log.exists() else None
        tail = log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:] if log else []
        lines = [f"{failure}.", *(f"  | {line}" for line in tail)]
        if ANSWERS["environment"] == "current" and any("ModuleNotFoundError" in line for line in tail):
            lines.append(f"{sys.executable} lacks packages: install requirements.lock, or take environment=new.")
        lines += [f"Log: {log}"] if log else []
        lines += [f"To repeat it: {failure.repeat}"] if failure.repeat else []
    steps = next_steps(project, python)
    project_lines = [f"{ANSWERS['project_name']} is in {project}", *notes]
    return ["", *lines, *project_lines, "Next (README.md tells the rest):", *(f"  {step}" for step in steps), verdict]


if __name__ == "__main__":
    sys.exit(main())
