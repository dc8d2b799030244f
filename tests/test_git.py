"""The first commit: made or skipped with a note, and nothing outside the project changed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest


def git(*arguments: str, cwd: Path) -> str:
    return subprocess.check_output(["git", *arguments], cwd=cwd, text=True).strip()


@pytest.fixture
def make_repository(hook, project):
    """Run the git step with the given answers in the tiny project."""

    def make(**answers: str) -> list[str]:
        return hook("post_gen_project", git_init=True, **answers).make_repository(project)

    return make


def test_one_commit_on_main_holds_every_file(make_repository, project):
    (project / ".venv").mkdir()
    (project / ".venv" / "big").write_text("big")
    assert make_repository(project_name="My Net") == []
    assert git("log", "--all", "--format=%D %s", cwd=project) == "HEAD -> main Start My Net"
    assert git("ls-files", cwd=project).splitlines() == [".gitignore", "requirements.lock", "train.py"]
    assert git("status", "--short", cwd=project) == ""


def test_without_an_identity_the_author_of_the_answers_commits_once(make_repository, project):
    assert make_repository(author_name='Zoë "Z" O\'Neil \\ = {x}', author_email="z@example.com") == []
    assert (
        git("log", "--format=%an|%ae|%cn", cwd=project)
        == 'Zoë "Z" O\'Neil \\ = {x}|z@example.com|Zoë "Z" O\'Neil \\ = {x}'
    )
    assert subprocess.run(["git", "config", "user.name"], cwd=project, check=False).returncode == 1


def test_a_configured_identity_is_used(make_repository, project):
    git("config", "--global", "user.name", "Configured", cwd=project)
    assert make_repository(author_name="Answer", author_email="answer@example.com") == []
    assert git("log", "--format=%an %ae", cwd=project) == "Configured answer@example.com"


def test_an_identity_from_the_environment_is_used(make_repository, project, monkeypatch):
    monkeypatch.setenv("GIT_AUTHOR_NAME", "From the environment")
    assert make_repository() == []
    assert git("log", "--format=%an", cwd=project) == "From the environment"


def test_signing_hooks_and_personal_ignore_lists_do_not_disturb_the_commit(make_repository, project):
    home = Path(os.environ["HOME"])
    hooks = home / "hooks"
    hooks.mkdir()
    for name in ("pre-commit", "prepare-commit-msg"):
        (hooks / name).write_text("#!/bin/sh\nexit 1\n")
        (hooks / name).chmod(0o755)
    (home / "ignore").write_text("configs/\n")
    for key, value in {
        "commit.gpgsign": "true",
        "gpg.program": "false",
        "core.hooksPath": str(hooks),
        "core.excludesFile": str(home / "ignore"),
    }.items():
        git("config", "--global", key, value, cwd=project)
    (project / "configs" / "train.yaml").write_text("")
    assert make_repository() == []
    assert "configs/train.yaml" in git("ls-files", cwd=project)


def test_inside_another_repository_nothing_is_made_or_staged(make_repository, project):
    outer = project.parent
    git("init", "--quiet", cwd=outer)
    (outer / "staged.txt").write_text("work")
    git("add", "staged.txt", cwd=outer)
    (note,) = make_repository()
    assert str(outer) in note
    assert not (project / ".git").exists()
    assert git("diff", "--cached", "--name-only", cwd=outer) == "staged.txt"


def test_variables_of_a_running_git_hook_do_not_lead_to_its_repository(make_repository, project, tmp_path, monkeypatch):
    other = tmp_path / "other"
    other.mkdir()
    git("init", "--quiet", cwd=other)
    (other / "staged.txt").write_text("work")
    git("add", "staged.txt", cwd=other)
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other / ".git" / "index"))
    monkeypatch.setenv("GIT_WORK_TREE", str(other))
    assert make_repository() == []
    for name in ("GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE"):
        monkeypatch.delenv(name)
    assert git("diff", "--cached", "--name-only", cwd=other) == "staged.txt"
    assert "train.py" in git("ls-files", cwd=project)


def test_a_repository_that_exists_is_left_alone(make_repository, project):
    make_repository()
    (project / "new.txt").write_text("new")
    head = git("rev-parse", "HEAD", cwd=project)
    (note,) = make_repository()
    assert "left alone" in note
    assert git("rev-parse", "HEAD", cwd=project) == head
    assert git("status", "--short", cwd=project) == "?? new.txt"


def test_without_git_a_note_says_what_to_do(make_repository, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    (note,) = make_repository()
    assert "not found" in note
    assert "git init" in note


def test_an_old_git_makes_main_too(make_repository, project, tmp_path, monkeypatch):
    """Git before 2.28 knows neither `init -b` nor init.defaultBranch."""
    real = shutil.which("git")
    old = tmp_path / "bin" / "git"
    old.parent.mkdir()
    refuse = 'case "$a" in -b|--initial-branch*) echo "error: unknown switch" >&2; exit 129;; esac'
    # The setting reaches this git under a name that means nothing to it.
    rename = 'set -- "$@" "$(printf %s "$a" | sed s/init.defaultBranch/x.y/)"'
    old.write_text(f'#!/bin/sh\nn=$#\nfor a; do {refuse}; {rename}; done\nshift $n\nexec {real} "$@"\n')
    old.chmod(0o755)
    monkeypatch.setenv("PATH", f"{old.parent}:{os.environ['PATH']}")
    git("config", "--global", "init.defaultBranch", "trunk", cwd=project)
    assert make_repository() == []
    assert git("branch", "--show-current", cwd=project) == "main"


def test_a_commit_that_fails_is_a_note_and_not_an_error(make_repository, project, tmp_path, monkeypatch):
    broken = tmp_path / "bin" / "git"
    broken.parent.mkdir()
    broken.write_text('#!/bin/sh\ncase "$*" in *commit\\ *) echo "fatal: no space" >&2; exit 128;; esac\n')
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{broken.parent}:{os.environ['PATH']}")
    (note,) = make_repository()
    assert "`git commit` failed (fatal: no space)" in note
    assert (project / "train.py").exists()
