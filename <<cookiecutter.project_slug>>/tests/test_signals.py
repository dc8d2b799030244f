"""A run that is asked to stop saves, ends every process and says how to go on; a cluster puts it back in its queue."""

import os
import shlex
import signal
import subprocess
import sys
import time

import pytest
import soak
import torch
from short_run import QUICK, TWO_PROCESSES, results_of, start

from << cookiecutter.package_name >> import training
from << cookiecutter.package_name >>.models.image_classifier import ImageClassifier


@pytest.fixture
def run(here, tmp_path):
    """Train in this process; give the folder and what was done."""

    def train(name, *overrides):
        folder = tmp_path / name
        return folder, here("train", *QUICK, *overrides, f"hydra.run.dir={folder}")

    return train


def left_of(process):
    """Give the processes that are left of a run a while later, without those that have ended and are not waited for."""
    end = time.monotonic() + 10
    while True:
        listed = subprocess.run(["ps", "-e", "-o", "pgid=,stat="], capture_output=True, text=True, check=True).stdout
        rows = [line.split() for line in listed.splitlines()]
        left = [row for row in rows if row[0] == str(process.pid) and not row[1].startswith("Z")]
        if not left or time.monotonic() > end:
            return left
        time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code", "processes"),
    [(signal.SIGTERM, 143, 1), (signal.SIGINT, 130, 1), (signal.SIGUSR1, 143, 1), (signal.SIGTERM, 143, 2)],
)
def test_a_signal_saves_and_ends_the_run_with_its_code(number, code, processes, project, here, tmp_path):
    folder = tmp_path / "run"
    process = start(project, folder, *(TWO_PROCESSES if processes == 2 else ()))
    os.kill(process.pid, number)
    screen, _ = process.communicate(timeout=30)
    assert process.returncode == code, screen
    assert f"Stopped by {number.name}. The last checkpoint: " in screen
    assert "Traceback" not in screen
    assert left_of(process) == []
    assert not (folder / "results.json").exists()
    step = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)["global_step"]
    done = here("train", f"resume={folder}", f"trainer.max_steps={step + 3}", "trainer.devices=1")
    assert done.returncode == 0, done.stderr
    assert results_of(folder)["steps"] == step + 3


@pytest.mark.slow
def test_a_second_signal_ends_every_process_at_once(project, tmp_path):
    process = start(project, tmp_path / "run", *TWO_PROCESSES)
    os.kill(process.pid, signal.SIGTERM)
    time.sleep(0.005)
    os.kill(process.pid, signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode in (-signal.SIGTERM, 143)
    assert left_of(process) == []


def test_a_signal_during_validation_lets_validation_be_repeated(run, monkeypatch):
    whole, _ = run("whole", "callbacks=ema", "callbacks.last_checkpoint.every_n_train_steps=1")
    steps = ImageClassifier.validation_step

    def interrupted(self, batch, batch_idx):
        if self.global_step == 6 and batch_idx == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return steps(self, batch, batch_idx)

    with monkeypatch.context() as patch:
        patch.setattr(ImageClassifier, "validation_step", interrupted)
        folder, done = run("cut", "callbacks=ema", "callbacks.last_checkpoint.every_n_train_steps=1")
    assert done.returncode == 143, done.stderr
    folder, done = run("cut", "callbacks=ema", "callbacks.last_checkpoint.every_n_train_steps=1", "resume=auto")
    assert done.returncode == 0, done.stderr
    soak.compare(whole, folder)


def test_a_signal_after_training_ends_the_run_at_once(run, here, monkeypatch):
    def interrupted(*arguments):
        os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(training, "finish", interrupted)
        folder, done = run("cut")
    assert done.returncode == 143, done.stderr
    assert "Stopped by SIGTERM. The last checkpoint: " in done.stderr
    assert not (folder / "results.json").exists()
    done = here("train", f"resume={folder}")
    assert done.returncode == 0, done.stderr
    assert results_of(folder)["steps"] == 12


@pytest.mark.slow
def test_a_signal_to_a_grid_lets_its_job_save_and_end(project):
    sweep = project / "logs" / "grid" / "sweeps" / "signalled"
    command = [sys.executable, str(project / "train.py"), *QUICK, *TWO_PROCESSES, "-m", "seed=1,2", "name=grid"]
    command += ["run_id=signalled", "trainer.max_epochs=2000", "callbacks.early_stopping=null"]
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    process = subprocess.Popen(command, start_new_session=True, **quiet)
    while process.poll() is None and not (sweep / "0" / "checkpoints" / "last.ckpt").exists():
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGTERM)
    screen, _ = process.communicate(timeout=60)
    assert process.returncode == 143, screen
    assert "Stopped by SIGTERM. The last checkpoint: " in screen
    assert not (sweep / "1").exists()


# Clusters.


def test_tasks_that_do_not_match_the_devices_are_refused(here, monkeypatch, tmp_path):
    for name, value in {"SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_JOB_ID": "7", "SLURM_LOCALID": "0"}.items():
        monkeypatch.setenv(name, value)
    done = here("train", *QUICK, f"hydra.run.dir={tmp_path / 'run'}")
    assert done.returncode == 2
    assert "SLURM started 4 tasks, and trainer.devices=1" in done.stderr
    assert "Try strategy=ddp trainer.devices=4" in done.stderr


@pytest.mark.slow
def test_a_preempted_job_goes_back_into_the_queue_and_goes_on(project, tmp_path):
    """Play SLURM: `srun` starts the command and is sent its signal, `scontrol` notes what it is asked."""
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "srun").write_text('#!/bin/sh\necho $$ > "$MARKS/srun"\nexec "$@"\n')
    (tools / "scontrol").write_text('#!/bin/sh\necho "$@" >> "$MARKS/scontrol"\n')
    (tools / "python").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    for tool in tools.iterdir():
        tool.chmod(0o755)
    environment = {
        **os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "MARKS": str(tmp_path), "SLURM_SUBMIT_DIR": str(project),
        "SLURM_JOB_ID": "77", "SLURM_JOB_NUM_NODES": "1", "SLURM_NTASKS": "1", "SLURM_PROCID": "0",
        "SLURM_JOB_NAME": "train", "SLURM_NODEID": "0", "SLURM_LOCALID": "0", "SLURM_NODELIST": "localhost",
        "MASTER_ADDR": "127.0.0.1",
    }  # fmt: skip
    quick = [*QUICK, "trainer.accelerator=cpu", "callbacks.early_stopping=null", "name=cluster"]
    # The same command each time, and long enough for the signal to find it at work.
    quick += ["trainer.max_epochs=3000"]
    last = project / "logs" / "cluster" / "slurm-77" / "checkpoints" / "last.ckpt"
    job = ["bash", str(project / "scripts" / "train.sbatch"), *quick]
    quiet = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "env": environment}
    with subprocess.Popen(job, **quiet) as first:
        while first.poll() is None and not last.exists():
            time.sleep(0.02)
        os.kill(int((tmp_path / "srun").read_text()), signal.SIGUSR1)
        screen, _ = first.communicate(timeout=120)
    assert first.returncode == 143, screen
    assert (tmp_path / "scontrol").read_text() == "requeue 77\n"
    step = torch.load(last, weights_only=True)["global_step"]
    again = subprocess.run([*job, f"trainer.max_steps={step + 2}"], **quiet, timeout=120, check=False)
    assert again.returncode == 0, again.stdout
    assert results_of(last.parent.parent)["steps"] == step + 2
