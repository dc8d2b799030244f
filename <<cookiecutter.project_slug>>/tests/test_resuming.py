"""A run that was stopped or killed goes on as if it had never been: same weights, metrics, checkpoints and table."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time

import hydra
import pytest
import soak
import torch
import yaml
from hydra import initialize_config_dir
from omegaconf import OmegaConf
from short_run import QUICK, TWO_PROCESSES, results_of, start

from << cookiecutter.package_name >>.callbacks.last_checkpoint import LastCheckpoint
from << cookiecutter.package_name >>.checkpoints import read_checkpoint
from << cookiecutter.package_name >>.configuration import CONFIG_DIR, ConfigError, find_checkpoint
from << cookiecutter.package_name >>.models.image_classifier import ImageClassifier
from << cookiecutter.package_name >>.resuming import _merge


class PowerCut(BaseException):
    """Ends a run at a moment of the test's choice, and nothing may tidy up after it."""


@pytest.fixture
def run(here, tmp_path):
    """Train in this process; give the folder and what was done."""

    def train(name, *overrides):
        folder = tmp_path / name
        return folder, here("train", *QUICK, *overrides, f"hydra.run.dir={folder}")

    return train


@contextlib.contextmanager
def power_lost_after(batches):
    """Let a machine train so many batches and no more."""
    steps, trained = ImageClassifier.training_step, []

    def count(self, batch, batch_idx):
        if len(trained) == batches:
            raise PowerCut
        trained.append(batch_idx)
        return steps(self, batch, batch_idx)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ImageClassifier, "training_step", count)
        with pytest.raises(PowerCut):
            yield


@pytest.fixture
def cut_after(run):
    def train(name, batches, *overrides):
        with power_lost_after(batches):
            run(name, "callbacks.last_checkpoint.every_n_train_steps=1", *overrides)

    return train


@pytest.fixture(scope="module")
def train_once(start_here):
    """Train in this process for several tests, which take copies of the folder."""

    def train(folder, *overrides):
        done = start_here("train", *QUICK, *overrides, f"hydra.run.dir={folder}", cwd=folder.parent)
        assert done.returncode == 0, done.stdout + done.stderr

    return train


@pytest.fixture(scope="module")
def stopped_once(train_once, tmp_path_factory):
    folder = tmp_path_factory.mktemp("once") / "stopped"
    with power_lost_after(8):
        train_once(folder, "callbacks.last_checkpoint.every_n_train_steps=1", "optimizer.lr=0.002")
    return folder


@pytest.fixture(scope="module")
def finished_once(train_once, tmp_path_factory):
    folder = tmp_path_factory.mktemp("once") / "finished"
    train_once(folder)
    return folder


# In the middle of an epoch, and between two.
@pytest.mark.parametrize("batches", [4, pytest.param(6, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "job",
    [
        ("model=cnn", "callbacks=ema", "model.mixup_alpha=0.2", "model.net.widths=[4,8]"),
        ("trainer.accumulate_grad_batches=2", "scheduler=reduce_on_plateau", "model.net.dropout=0.2"),
        ("trainer.val_check_interval=2", "data.balance=true", "model.freeze_backbone=true", "model.unfreeze_epoch=1"),
    ],
    ids=["averaged", "accumulated", "validated"],
)
def test_a_run_goes_on_from_any_batch_as_if_it_had_never_stopped(job, batches, run, cut_after, tmp_path):
    whole, done = run("whole", *job, "callbacks.last_checkpoint.every_n_train_steps=1")
    assert done.returncode == 0, done.stderr
    cut_after("cut", batches, *job)
    cut, done = run("cut", *job, "callbacks.last_checkpoint.every_n_train_steps=1", "resume=auto")
    assert done.returncode == 0, done.stdout + done.stderr
    soak.compare(whole, cut)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_a_run_that_is_killed_again_and_again_ends_like_an_undisturbed_one(processes, project, tmp_path):
    overrides = list(TWO_PROCESSES) if processes == 2 else []
    done = soak.soak(project, tmp_path, kills=2, seed=processes, overrides=overrides)
    assert done["killed"] == 2
    assert done["went on from a checkpoint"] >= 1


@pytest.mark.slow
def test_a_run_with_worker_processes_goes_on_exactly(project, tmp_path):
    done = soak.soak(project, tmp_path, kills=1, seed=5, overrides=["data.num_workers=2"])
    assert done["killed"] == 1


# Commands.


@pytest.fixture
def stopped(stopped_once, tmp_path):
    """Give the folder of a run that lost its power in the second epoch, and was moved."""
    return shutil.copytree(stopped_once, tmp_path / "stopped")


@pytest.fixture
def finished(finished_once, tmp_path):
    return shutil.copytree(finished_once, tmp_path / "finished")


def untouched(folder):
    """Give the times at which the files of a run were written, without its log."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file() and path.suffix != ".log"}


def test_a_run_directory_repeats_the_runs_own_overrides(stopped, here):
    done = here("train", f"resume={stopped}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert results_of(stopped)["steps"] == 12
    stored = read_checkpoint(stopped).config
    assert (stored.optimizer.lr, stored.trainer.limit_train_batches) == (0.002, 6)
    # What was asked first stays; what was asked now has a record of its own.
    assert (stopped / "environment.json").exists()
    assert "resume=" in json.loads((stopped / "environment-2.json").read_text(encoding="utf-8"))["command"]


def test_a_checkpoint_in_a_run_directory_stands_for_the_run(stopped, here):
    done = here("train", f"resume={stopped / 'checkpoints' / 'last.ckpt'}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert results_of(stopped)["run_dir"] == str(stopped)


def test_a_checkpoint_on_its_own_starts_a_new_run_that_goes_on(stopped, here, tmp_path):
    lone = tmp_path / "elsewhere.ckpt"
    (stopped / "checkpoints" / "last.ckpt").rename(lone)
    done = here("train", *QUICK, "optimizer.lr=0.002", f"resume={lone}", f"hydra.run.dir={tmp_path / 'new'}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert results_of(tmp_path / "new")["steps"] == 12
    refused = here("train", *QUICK, f"resume={lone}", f"hydra.run.dir={tmp_path / 'other'}")
    assert refused.returncode == 2
    assert "was trained with optimizer.lr=0.002 and cannot go on with 0.003" in refused.stderr


def test_more_epochs_win_and_the_schedule_is_laid_over_them(stopped, here, run):
    done = here("train", f"resume={stopped}", "trainer.max_epochs=4")
    assert done.returncode == 0, done.stdout + done.stderr
    longer = torch.load(stopped / "checkpoints" / "last.ckpt", weights_only=True)
    assert longer["global_step"] == 24
    whole, _ = run("whole", "optimizer.lr=0.002", "trainer.max_epochs=4")
    expected = torch.load(whole / "checkpoints" / "last.ckpt", weights_only=True)
    rates = [state["optimizer_states"][0]["param_groups"][0]["lr"] for state in (longer, expected)]
    assert rates[0] == pytest.approx(rates[1])


def test_another_model_is_refused_with_both_values(stopped, here):
    before = untouched(stopped)
    done = here("train", f"resume={stopped}", "model.net.hidden_sizes=[7]")
    assert done.returncode == 2
    assert "model.net.hidden_sizes=[128,128] and cannot go on with [7]" in done.stderr
    assert f"model.init_from={stopped.name}" in done.stderr
    assert untouched(stopped) == before


def test_averages_can_be_neither_added_nor_left_out(stopped, here):
    done = here("train", f"resume={stopped}", "callbacks=ema")
    assert done.returncode == 2
    assert "was trained with callbacks.ema=null and cannot go on with {" in done.stderr


def test_a_new_choice_of_a_group_drops_what_it_has_no_key_for(stopped, here):
    done = here("train", f"resume={stopped}", "callbacks=minimal")
    assert done.returncode == 0, done.stderr
    kept = yaml.safe_load((stopped / ".hydra" / "overrides.yaml").read_text(encoding="utf-8"))
    assert "callbacks.last_checkpoint.every_n_train_steps=1" in kept
    assert "callbacks.model_summary=null" not in kept


@pytest.mark.parametrize(
    ("own", "new", "merged"),
    [
        (["callbacks.lr_monitor=null", "callbacks.best_checkpoint.mode=max"], ["callbacks=minimal"],
         ["callbacks.best_checkpoint.mode=max", "callbacks=minimal"]),
        (["+callbacks.timer._target_=x.Timer", "+callbacks.timer.duration=1"], ["callbacks=minimal"],
         ["+callbacks.timer._target_=x.Timer", "+callbacks.timer.duration=1", "callbacks=minimal"]),
        (["+callbacks.early_stopping.min_delta=1"], ["callbacks=minimal"], ["callbacks=minimal"]),
        (["logger.wandb.x=a", "seed=1"], ["debug=smoke"], ["seed=1", "debug=smoke"]),
        (["+callbacks.best_checkpoint.save_top_k=3"], ["~callbacks.best_checkpoint.save_top_k"], []),
        (["optimizer.lr=0.1", "export.opset=18"], ["~export"], ["optimizer.lr=0.1", "~export"]),
    ],
)  # fmt: skip
def test_new_overrides_lie_on_top_of_those_that_still_have_a_place(own, new, merged):
    def compose(overrides):
        with initialize_config_dir(config_dir=str(CONFIG_DIR), version_base="1.3"):
            return hydra.compose("train", overrides)

    assert _merge(own, new, [], compose) == merged


def test_what_was_added_once_can_be_changed_without_a_plus(stopped, here):
    overrides = stopped / ".hydra" / "overrides.yaml"
    added = "- +callbacks.early_stopping.min_delta=0.01\n"
    overrides.write_text(overrides.read_text(encoding="utf-8") + added, encoding="utf-8")
    done = here("train", f"resume={stopped}", "callbacks.early_stopping.min_delta=0.02")
    assert done.returncode == 0, done.stderr
    assert OmegaConf.load(stopped / "config.yaml").callbacks.early_stopping.min_delta == 0.02


@pytest.mark.parametrize(
    "override",
    ["+logger.x={_target_: builtins.open, mode: w, file: MARK}", "+callbacks.x={_target_: os.mkdir, path: MARK}"],
)
def test_a_run_directory_from_a_stranger_cannot_run_code(override, stopped, here, tmp_path):
    mark = tmp_path / "mark"
    overrides = stopped / ".hydra" / "overrides.yaml"
    crafted = override.replace("MARK", str(mark))
    overrides.write_text(f"{overrides.read_text(encoding='utf-8')}- '{crafted}'\n", encoding="utf-8")
    done = here("train", f"resume={stopped}", "logger=csv")
    assert done.returncode == 2, done.stderr
    assert "Nothing of it was run" in done.stderr
    assert not mark.exists()


@pytest.mark.parametrize(
    "override",
    [
        "+hydra.callbacks.x={_target_: builtins.open, mode: w, file: MARK}",
        "+hydra.job_logging.handlers.x={class: logging.FileHandler, filename: MARK}",
        "+hydra={callbacks: {x: {_target_: builtins.open, mode: w, file: MARK}}}",
        "+callbacks@hydra.callbacks=minimal",
    ],
)
def test_a_stranger_does_not_say_how_hydra_works(override, stopped, here, tmp_path):
    mark = tmp_path / "mark"
    overrides = stopped / ".hydra" / "overrides.yaml"
    crafted = override.replace("MARK", str(mark))
    overrides.write_text(f"{overrides.read_text(encoding='utf-8')}- '{crafted}'\n", encoding="utf-8")
    done = here("train", f"resume={stopped}")
    assert done.returncode == 0, done.stderr
    assert not mark.exists()


def test_the_last_checkpoint_stays_in_its_folder(here, tmp_path):
    done = here("train", *QUICK, "callbacks.last_checkpoint.filename=../../x", f"hydra.run.dir={tmp_path / 'run'}")
    assert done.returncode == 2
    assert "must be a name without folders, got ../../x. Try callbacks.last_checkpoint.filename=last." in done.stderr


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("results.json", b"{"),
        ("results.json", b"[1]"),
        ("results.json", b'{"epochs": "2", "steps": 12, "errors": []}'),
        (".hydra/overrides.yaml", b""),
        (".hydra/overrides.yaml", b"\xff\x00"),
        (".hydra/overrides.yaml", b"- [1]"),
        (".hydra/overrides.yaml", b"a: [1"),
        ("config.yaml", b""),
        ("config.yaml", b"- 1"),
        ("config.yaml", b"name: ${oc.env:HOME}\nrun_id: x"),
    ],
)
def test_a_damaged_run_directory_is_refused_by_the_name_of_the_file(name, content, finished, here):
    (finished / name).write_bytes(content)
    done = here("train", f"resume={finished}")
    assert done.returncode == 2
    assert f"finished/{name} is damaged: " in done.stderr
    assert "model.init_from=finished." in done.stderr
    assert os.environ["HOME"] not in done.stderr


def test_a_finished_run_says_that_there_is_nothing_to_do(finished, here):
    before = untouched(finished)
    for request in ([f"resume={finished}"], [*QUICK, "resume=auto", f"hydra.run.dir={finished}"]):
        done = here("train", *request)
        assert done.returncode == 0, done.stderr
        assert "is finished: there is nothing to do" in done.stdout
    assert untouched(finished) == before


def test_a_run_that_ended_with_errors_is_no_success_when_it_is_asked_again(finished, here):
    results = results_of(finished) | {"errors": ["Export: no luck."]}
    (finished / "results.json").write_text(json.dumps(results), encoding="utf-8")
    done = here("train", f"resume={finished}")
    assert done.returncode == 1
    assert "is finished, with errors: Export: no luck. Its checkpoint can still be exported: python export.py" in (
        done.stderr
    )


def test_a_run_that_is_trained_on_is_finished_no_longer(finished, here):
    with power_lost_after(3):
        here("train", f"resume={finished}", "trainer.max_epochs=4", "callbacks.last_checkpoint.every_n_train_steps=1")
    assert not (finished / "results.json").exists()
    assert json.loads((finished / "results-1.json").read_text(encoding="utf-8"))["steps"] == 12
    done = here("train", f"resume={finished}")
    assert done.returncode == 0, done.stderr
    assert results_of(finished)["steps"] == 24


def test_a_run_that_was_killed_after_its_last_checkpoint_has_every_metric(finished, here):
    before = results_of(finished)
    (finished / "results.json").unlink()
    done = here("train", f"resume={finished}")
    assert done.returncode == 0, done.stderr
    assert results_of(finished)["metrics"] == before["metrics"]
    assert {"train/loss", "val/acc", "test/acc"} <= before["metrics"].keys()


def test_a_run_that_was_moved_keeps_its_best_checkpoint(stopped, here):
    last = stopped / "checkpoints" / "last.ckpt"
    content = torch.load(last, weights_only=True)
    (state,) = [state for state in content["callbacks"].values() if "best_model_score" in state]
    assert not state["best_model_path"].startswith(str(stopped))
    # So good that nothing beats it.
    score = torch.tensor(0.001)
    best_k_models = dict.fromkeys(state["best_k_models"], score)
    state |= {"best_model_score": score, "kth_value": score, "best_k_models": best_k_models}
    torch.save(content, last)
    before = (stopped / "checkpoints" / "best.ckpt").read_bytes()
    done = here("train", f"resume={stopped}")
    assert done.returncode == 0, done.stderr
    assert results_of(stopped)["best_score"] == score.item()
    assert results_of(stopped)["best_checkpoint"] == str(stopped / "checkpoints" / "best.ckpt")
    assert (stopped / "checkpoints" / "best.ckpt").read_bytes() == before


@pytest.mark.parametrize(
    ("kind", "typed", "told"),
    [
        ("finished", "trainer.max_epochs=1", "lies behind the run, which is at epoch 2. Try trainer.max_epochs=4."),
        ("finished", "run_id=other", "goes on in the run's own directory. Leave out run_id=."),
        ("stopped", "strategy=fsdp", "this run uses cpu. Try strategy=ddp."),
    ],
)
def test_a_request_that_a_run_cannot_follow_changes_nothing(kind, typed, told, request, here):
    folder = request.getfixturevalue(kind)
    before = untouched(folder)
    done = here("train", f"resume={folder}", typed)
    assert done.returncode == 2
    assert told in done.stderr
    assert untouched(folder) == before


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("trainer.max_epochs=0", "lies behind the run, which is at epoch 1. Try trainer.max_epochs=2."),
        pytest.param(
            *("trainer.max_steps=5", "lies behind the run, which is at step 8. Try trainer.max_steps=16."),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_an_unfinished_run_cannot_end_before_the_place_it_has_reached(typed, told, stopped, here):
    done = here("train", f"resume={stopped}", typed)
    assert done.returncode == 2, done.stderr
    assert f"{typed} {told}" in done.stderr
    assert here("train", f"resume={stopped}", "trainer.max_epochs=2", "trainer.max_steps=-1").returncode == 0


def test_a_best_checkpoint_of_another_name_is_found_also_after_a_move(run, here, tmp_path):
    folder, done = run("named", "callbacks.best_checkpoint.filename='at-{epoch}'")
    assert done.returncode == 0, done.stderr
    name = results_of(folder)["best_checkpoint"].rpartition("/")[2]
    assert name.startswith("at-epoch=")
    folder.rename(tmp_path / "moved")
    assert find_checkpoint(tmp_path / "moved") == tmp_path / "moved" / "checkpoints" / name


def test_auto_begins_goes_on_and_ends_by_one_command(here, project):
    command = (*QUICK, "name=safe", "run_id=to-repeat", "resume=auto")
    for _ in range(2):
        assert here("train", *command).returncode == 0
    assert results_of(project / "logs" / "safe" / "to-repeat")["steps"] == 12


def test_a_run_without_a_checkpoint_yet_begins_again(cut_after, here, tmp_path):
    for typed in (["resume=early"], [*QUICK, "resume=auto", "hydra.run.dir=early"]):
        cut_after("early", 0)
        assert not (tmp_path / "early" / "checkpoints").exists()
        done = here("train", *typed)
        assert done.returncode == 0, done.stderr
        assert results_of(tmp_path / "early")["steps"] == 12
        shutil.rmtree(tmp_path / "early")


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        (["resume=auto"], "resume=auto has to know which run. Try run_id=trial-1 resume=auto."),
        (["resume=nowhere"], "nowhere, which does not exist"),
        (["-m", "seed=1,2", "resume=auto", "run_id=x"], "resume= goes on with one run, and -m starts several"),
    ],
)
def test_what_cannot_be_resumed_is_refused(typed, told, here):
    done = here("train", *typed)
    assert done.returncode == 2
    assert told in done.stderr


def test_a_checkpoint_of_another_format_is_refused_by_name(stopped, tmp_path):
    content = torch.load(stopped / "checkpoints" / "last.ckpt", weights_only=True)
    torch.save(content | {"format": 0}, tmp_path / "old.ckpt")
    with pytest.raises(ConfigError, match=r"old\.ckpt has format 0; this code reads format 1\. Bring back the code"):
        read_checkpoint(tmp_path / "old.ckpt")


# Failures.


def test_an_exception_saves_what_was_trained(run, here, monkeypatch):
    steps = ImageClassifier.training_step

    def fail(self, batch, batch_idx):
        if self.global_step == 4:
            raise RuntimeError("out of luck")
        return steps(self, batch, batch_idx)

    with monkeypatch.context() as patch:
        patch.setattr(ImageClassifier, "training_step", fail)
        folder, done = run("failed")
    assert done.returncode == 1
    assert torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)["global_step"] == 4
    whole, _ = run("whole")
    assert here("train", f"resume={folder}").returncode == 0
    assert results_of(folder)["metrics"] == results_of(whole)["metrics"]


def test_weights_that_are_no_numbers_never_replace_the_last_good_ones(run, monkeypatch):
    steps = ImageClassifier.training_step

    def diverge(self, batch, batch_idx):
        return steps(self, batch, batch_idx) * (float("nan") if self.global_step == 8 else 1.0)

    monkeypatch.setattr(ImageClassifier, "training_step", diverge)
    folder, done = run("diverged")
    assert done.returncode == 1
    last = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)
    assert last["global_step"] == 6
    assert all(weight.isfinite().all() for weight in last["state_dict"].values())
    assert "not finite at step 12: the last checkpoint stays" in (folder / "train.log").read_text(encoding="utf-8")


def test_a_full_disk_leaves_the_last_checkpoint_whole_and_says_what_was_needed(run, monkeypatch):
    save, saved = LastCheckpoint.save, []

    def fill_the_disk(self, trainer):
        if saved:
            monkeypatch.setattr(torch, "save", no_space)
        saved.append(trainer.global_step)
        save(self, trainer)

    def no_space(*arguments, **keywords):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(LastCheckpoint, "save", fill_the_disk)
    folder, done = run("full", "callbacks.last_checkpoint.every_n_train_steps=2", "callbacks.best_checkpoint=null")
    assert done.returncode == 1
    assert re.search(r"last\.ckpt could not be written: No space left on device\. It needs about \d+ MB", done.stderr)
    assert "Traceback" not in done.stderr
    assert f"resume={folder.name}" in done.stderr
    assert torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)["global_step"] == saved[0]
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["last.ckpt"]


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_fails_takes_the_others_down_with_its_own_error_on_screen(rank, project, tmp_path):
    broken = (
        "import << cookiecutter.package_name >>.models.image_classifier as room\n"
        "steps = room.ImageClassifier.training_step\n"
        "def fail(self, batch, batch_idx):\n"
        f"    if self.global_rank == {rank} and self.global_step == 3: raise RuntimeError('rank is out of luck')\n"
        "    return steps(self, batch, batch_idx)\n"
        "room.ImageClassifier.training_step = fail\n"
    )
    door = project / "train_broken.py"
    door.write_text(broken + (project / "train.py").read_text(encoding="utf-8"), encoding="utf-8")
    try:
        command = [sys.executable, str(door), *QUICK, *TWO_PROCESSES, f"hydra.run.dir={tmp_path / 'run'}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, start_new_session=True, check=False)
    finally:
        door.unlink()
    assert done.returncode != 0
    assert "rank is out of luck" in done.stderr


@pytest.mark.slow
def test_two_processes_never_go_on_with_one_run_at_once(stopped, project, here):
    process = start(project, stopped, "optimizer.lr=0.002", "resume=auto", "trainer.max_epochs=3000")
    while process.poll() is None and not (stopped / "environment-2.json").exists():
        time.sleep(0.02)
    try:
        done = here("train", f"resume={stopped}", "trainer.max_epochs=77")
        assert done.returncode == 2
        assert "another process is writing this run" in done.stderr
        assert "max_epochs=77" not in (stopped / ".hydra" / "overrides.yaml").read_text(encoding="utf-8")
    finally:
        process.kill()
        process.communicate()
