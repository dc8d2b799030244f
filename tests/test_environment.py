"""`environment=new`: built whole or not at all, with uv or pip, by a fitting Python; small locks and stand-ins only."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import socket
import stat
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
from conftest import PROJECT, ROOT

# Writes its arguments down, and an interpreter where the real one would.
FAKE_UV = """#!/bin/sh
echo "$@" >> "$HOME/uv.log"
echo "uv says hello"
case "$1" in venv) mkdir -p .venv/bin && ln -s {python} .venv/bin/python;; esac
{extra}
"""


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the whole PATH, next to the system's plain tools."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in ("sh", "mkdir", "ln", "sleep", "git"):
        (folder / tool).symlink_to(shutil.which(tool) or tool)
    monkeypatch.setenv("PATH", str(folder))
    return folder


@pytest.fixture
def fake_uv(path: Path):
    def make(extra: str = "") -> Path:
        return script(path / "uv", FAKE_UV.format(python=sys.executable, extra=extra))

    return make


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """A wheel that holds one module."""
    file = tmp_path / "tiny_thing-1.0-py3-none-any.whl"
    info = "tiny_thing-1.0.dist-info"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("tiny_thing.py", "value = 7\n")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-thing\nVersion: 1.0\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return file


def lock(wheel: Path, digest: str | None = None) -> str:
    digest = digest or hashlib.sha256(wheel.read_bytes()).hexdigest()
    return f"tiny-thing @ {wheel.as_uri()} --hash=sha256:{digest}\n"


@pytest.fixture
def post_gen(hook):
    return hook("post_gen_project", environment="new", smoke_test=True)


def test_pip_builds_an_environment_from_the_lock_in_a_path_that_needs_quoting(
    post_gen, project, path, wheel, monkeypatch
):
    (project / "requirements.lock").write_text(lock(wheel))
    monkeypatch.setenv("PIP_USER", "1")
    monkeypatch.setenv("PIP_TARGET", str(project / "elsewhere"))
    monkeypatch.setenv("PYTHONPATH", str(project))
    monkeypatch.setenv("VIRTUAL_ENV", "/another/environment")
    python = post_gen.build_environment(project)
    assert Path(python) == project / ".venv" / "bin" / "python"
    assert subprocess.check_output([python, "-c", "import tiny_thing; print(tiny_thing.value)"], env={}) == b"7\n"
    assert (project / ".venv" / post_gen.MARKER).exists()
    assert not (project / "elsewhere").exists()
    assert not (project / "logs").exists()


def test_a_hash_that_differs_leaves_no_environment(post_gen, project, path, wheel, capfd):
    (project / "requirements.lock").write_text(lock(wheel, "0" * 64))
    with pytest.raises(post_gen.StepFailed, match="exit code 1") as failure:
        post_gen.build_environment(project)
    assert not (project / ".venv").exists()
    assert "HASHES" in (project / "logs" / "setup.log").read_text()
    assert "HASHES" in capfd.readouterr().out
    assert "-m venv .venv && " in failure.value.repeat
    assert "-r requirements.lock" in failure.value.repeat


def test_an_index_that_never_answers_is_given_up(post_gen, project, path, monkeypatch):
    (project / "requirements.lock").write_text(f"tiny-thing==1.0 --hash=sha256:{'0' * 64}\n")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{silent.getsockname()[1]}/simple")
        monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "")
        monkeypatch.setenv("PIP_TIMEOUT", "999")
        monkeypatch.setenv("PIP_DEFAULT_TIMEOUT", "999")
        post_gen.TIMEOUT = "1"
        start = time.monotonic()
        with pytest.raises(post_gen.StepFailed):
            post_gen.build_environment(project)
    assert time.monotonic() - start < 30
    assert not (project / ".venv").exists()


def test_patience_with_an_index_is_less_than_a_minute(post_gen, monkeypatch):
    monkeypatch.setenv("UV_HTTP_TIMEOUT", "999")
    assert post_gen.setup_variables()["UV_HTTP_TIMEOUT"] == post_gen.TIMEOUT
    assert int(post_gen.TIMEOUT) * (1 + int(post_gen.RETRIES)) < 55


def test_uv_is_used_where_it_is_on_the_path(post_gen, project, fake_uv, capfd):
    fake_uv()
    python = post_gen.build_environment(project)
    venv, install = (Path(os.environ["HOME"]) / "uv.log").read_text().splitlines()
    assert venv == f"venv --python {sys.executable} .venv"
    assert install.startswith(f"pip install --python {python} ")
    assert install.endswith("-r requirements.lock")
    assert "uv says hello" in capfd.readouterr().out


def test_uv_does_without_its_cache_in_a_home_that_cannot_be_written(post_gen, monkeypatch):
    assert "UV_NO_CACHE" not in post_gen.setup_variables()
    monkeypatch.setattr(post_gen.os, "access", lambda *_: False)
    assert post_gen.setup_variables()["UV_NO_CACHE"] == "1"


def test_uv_may_look_for_a_python_where_this_hook_finds_none(post_gen, project, fake_uv):
    fake_uv()
    post_gen.PYTHONS = ("9.9",)
    post_gen.build_environment(project)
    assert (Path(os.environ["HOME"]) / "uv.log").read_text().startswith("venv --python >=3.11,<3.14 .venv\n")


def test_a_complete_environment_is_kept_and_a_changed_lock_renews_it(post_gen, project, fake_uv):
    fake_uv()
    post_gen.build_environment(project)
    (project / ".venv" / "mine").touch()
    post_gen.build_environment(project)
    assert (project / ".venv" / "mine").exists()
    (project / "requirements.lock").write_text("# another\n")
    post_gen.build_environment(project)
    assert not (project / ".venv" / "mine").exists()


def test_a_killed_set_up_is_not_trusted_by_the_next_run(hook, post_gen, project, fake_uv, tmp_path):
    fake_uv(extra='case "$1" in pip) sleep 60;; esac')
    hook("post_gen_project", environment="new")
    process = subprocess.Popen([sys.executable, tmp_path / "rendered_post_gen_project.py"], stdout=subprocess.DEVNULL)
    log = Path(os.environ["HOME"]) / "uv.log"
    end = time.monotonic() + 20
    while time.monotonic() < end and not (log.exists() and "pip install" in log.read_text()):
        time.sleep(0.05)
    process.kill()
    process.wait()
    assert (project / ".venv" / "bin" / "python").exists()
    assert not (project / ".venv" / post_gen.MARKER).exists()
    (project / ".venv" / "half-made").touch()
    fake_uv()
    post_gen.build_environment(project)
    assert not (project / ".venv" / "half-made").exists()
    assert (project / ".venv" / post_gen.MARKER).exists()


def test_an_interrupted_set_up_is_removed(hook, post_gen, project, fake_uv, tmp_path):
    fake_uv(extra='case "$1" in pip) sleep 60;; esac')
    hook("post_gen_project", environment="new")
    process = subprocess.Popen(
        [sys.executable, tmp_path / "rendered_post_gen_project.py"], stdout=subprocess.PIPE, text=True
    )
    log = Path(os.environ["HOME"]) / "uv.log"
    end = time.monotonic() + 20
    while time.monotonic() < end and not (log.exists() and "pip install" in log.read_text()):
        time.sleep(0.05)
    process.terminate()
    output, _ = process.communicate(timeout=20)
    assert not (project / ".venv").exists()
    assert output.splitlines()[-1].startswith("NOT VERIFIED: The installation was interrupted")


def test_a_link_that_is_called_venv_is_replaced_and_its_target_spared(post_gen, project, fake_uv, tmp_path):
    fake_uv()
    target = tmp_path / "target"
    target.mkdir()
    (target / "mine").touch()
    (project / ".venv").symlink_to(target)
    post_gen.build_environment(project)
    assert (target / "mine").exists()
    assert not (project / ".venv").is_symlink()


def test_a_python_outside_the_allowed_versions_is_passed_over(post_gen, path):
    post_gen.PYTHONS = ("9.9", "9.8", "9.7")
    script(path / "python9.9", "#!/bin/sh\necho 'command not found' >&2\nexit 127\n")  # A version manager's stand-in.
    script(path / "python9.8", "#!/bin/sh\necho 3.10\n")
    assert post_gen.find_python("venv, ensurepip") is None
    fitting = script(path / "python9.7", "#!/bin/sh\necho 9.7\n")
    assert post_gen.find_python("venv, ensurepip") == str(fitting)


def test_what_is_missing_is_named_when_no_python_fits(post_gen, project, path):
    post_gen.PYTHONS = ("9.9",)
    with pytest.raises(post_gen.StepFailed, match=r"Python 9\.9 with `venv` and `ensurepip`.*or uv, on the PATH"):
        post_gen.build_environment(project)
    assert not (project / ".venv").exists()


def test_a_python_without_ensurepip_is_passed_over(post_gen, path, monkeypatch):
    bare = script(path / "bare", f'#!/bin/sh\ncase "$*" in *ensurepip*) exit 1;; esac\nexec "{sys.executable}" "$@"\n')
    monkeypatch.setattr(post_gen.sys, "executable", str(bare))
    assert post_gen.find_python("venv, ensurepip") is None
    assert post_gen.find_python("sys") == str(bare)


def test_a_missing_lock_is_told(post_gen, project, capsys):
    (project / "requirements.lock").unlink()
    assert post_gen.main() == 0
    assert "requirements.lock" in capsys.readouterr().out.splitlines()[-1]


def test_a_built_environment_is_proven_and_stays_out_of_the_first_commit(bake, small_template, fake_uv, capfd):
    fake_uv()
    project = bake(small_template, environment="new", smoke_test=True, git_init=True)
    lines = capfd.readouterr().out.splitlines()
    assert lines[-1].startswith(f"VERIFIED by a smoke test with {project}/.venv/bin/python: test/acc")
    assert "  source .venv/bin/activate" in lines
    tracked = subprocess.check_output(["git", "ls-files"], cwd=project, text=True)
    assert "train.py" in tracked
    assert ".venv" not in tracked


def test_the_hook_and_the_project_allow_the_same_pythons(post_gen):
    pyproject = ROOT / PROJECT / "pyproject.toml"
    (required,) = re.findall(r'^requires-python = "(.*)"', pyproject.read_text(encoding="utf-8"), re.MULTILINE)
    assert required == post_gen.REQUIRES_PYTHON
    minors = [int(version.split(".")[1]) for version in post_gen.PYTHONS]
    low, high = (int(number) for number in re.findall(r"3\.(\d+)", required))
    assert minors == list(range(high - 1, low - 1, -1))


def test_the_script_of_the_pipeline_can_be_run():
    assert (ROOT / ".ci" / "run").stat().st_mode & stat.S_IXUSR
