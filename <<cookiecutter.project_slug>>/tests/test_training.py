"""A run from top to bottom: what it leaves behind, what its switches change, and several processes."""

import csv
import hashlib
import json
import platform
import random
import shlex
import subprocess
import sys
from pathlib import Path

import lightning
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import Checkpoint, EarlyStopping, ModelCheckpoint, ModelSummary, ProgressBar
from omegaconf import OmegaConf

from << cookiecutter.package_name >>.callbacks.last_checkpoint import LastCheckpoint
from << cookiecutter.package_name >>.machine import fit_to_machine
from << cookiecutter.package_name >>.models.image_classifier import ImageClassifier
from << cookiecutter.package_name >>.profiling import NoProfiler
from << cookiecutter.package_name >>.training import build_callbacks, build_trainer

QUICK = ("model=mlp", "export=null", "logger=null", "trainer.max_epochs=1", "trainer.enable_progress_bar=false")
TWO_PROCESSES = ("trainer=ddp", "trainer.accelerator=cpu", "trainer.devices=2")


def results_of(run_dir):
    return json.loads((run_dir / "results.json").read_text(encoding="utf-8"))


def metrics_rows(run_dir):
    """Give the rows of metrics.csv without their empty cells."""
    with (run_dir / "metrics.csv").open(encoding="utf-8", newline="") as file:
        return [{key: float(value) for key, value in row.items() if value} for row in csv.DictReader(file)]


def checkpoint_of(run_dir, name="last"):
    return torch.load(run_dir / "checkpoints" / f"{name}.ckpt", map_location="cpu", weights_only=True)


def weights_of(run_dir, name="last"):
    return checkpoint_of(run_dir, name)["state_dict"]


def difference(one, other):
    assert one.keys() == other.keys()
    return max((one[key] - other[key]).abs().max().item() for key in one)


@pytest.fixture
def run(here, tmp_path):
    """Train for a moment in this process and give the run directory."""

    def train(name, *overrides):
        run_dir = tmp_path / name
        done = here("train", *QUICK, *overrides, f"hydra.run.dir={run_dir}")
        assert done.returncode == 0, done.stdout + done.stderr
        return run_dir

    return train


# What a run leaves behind.


def test_a_run_leaves_what_the_contract_lists(trained_run):
    files = {path.relative_to(trained_run.path).as_posix() for path in trained_run.path.rglob("*")}
    assert {
        ".hydra/config.yaml",
        ".hydra/overrides.yaml",
        "config.yaml",
        "environment.json",
        "checkpoints/best.ckpt",
        "checkpoints/last.ckpt",
        "metrics.csv",
        "train.log",
        "results.json",
    } <= files
    assert {file for file in files if file.endswith(".ckpt")} == {"checkpoints/best.ckpt", "checkpoints/last.ckpt"}
    assert not any("unfinished" in file for file in files)


def test_results_have_the_keys_that_every_command_reads(trained_run):
    results = trained_run.results
    assert {
        "run_dir": str(trained_run.path),
        "seed": 0,
        "monitor": "val/loss",
        "best_checkpoint": str(trained_run.path / "checkpoints" / "best.ckpt"),
        "world_size": 1,
        "precision": "32-true",
        "epochs": 3,
        "steps": 3 * (1168 // 64),
        "errors": [],
    }.items() <= results.items()
    assert {"best_score", "metrics", "exports", "train_samples_per_second", "duration_s"} <= results.keys()
    assert 0 < results["duration_s"] < 300
    # The training part is shorter than the run, so its rate is above the run's.
    assert results["train_samples_per_second"] > 3 * 18 * 64 / results["duration_s"]


def test_results_repeat_the_last_numbers_of_the_table(trained_run):
    rows = metrics_rows(trained_run.path)
    metrics = trained_run.results["metrics"]
    for name in ("train/loss", "train/acc", "val/loss", "val/acc", "test/loss", "test/acc"):
        assert metrics[name] == pytest.approx([row[name] for row in rows if name in row][-1])
    assert len([row for row in rows if "test/acc" in row]) == 1
    assert metrics["test/acc"] > 0.9


def test_the_best_checkpoint_is_that_of_the_lowest_validation_loss(trained_run):
    validations = [row for row in metrics_rows(trained_run.path) if "val/loss" in row]
    assert len(validations) == 3
    best = min(validations, key=lambda row: row["val/loss"])
    assert trained_run.results["best_score"] == pytest.approx(best["val/loss"])
    assert checkpoint_of(trained_run.path, "best")["epoch"] == best["epoch"]
    assert checkpoint_of(trained_run.path, "last")["global_step"] == trained_run.results["steps"]


def test_the_environment_says_how_to_repeat_the_run(trained_run, project):
    environment = json.loads((trained_run.path / "environment.json").read_text(encoding="utf-8"))
    assert environment["versions"]["torch"] == torch.__version__.partition("+")[0]
    assert environment["versions"]["lightning"] == lightning.__version__
    assert environment["python"] == platform.python_version()
    assert environment["host"] == platform.node()
    assert environment["devices"] == ["cpu"]
    assert "train.py" in environment["command"]
    assert "trainer.max_epochs=3" in environment["command"]
    assert Path(environment["directory"]) == trained_run.path.parent.resolve()
    # The copy of the project is no repository.
    assert environment["git_commit"] is None


def test_the_environment_records_commit_and_uncommitted_changes(run, project):
    def git(*arguments):
        who = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org", "-c", "commit.gpgsign=false")
        done = subprocess.run(["git", "-C", project, *who, *arguments], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    changed = project / "configs" / "train.yaml"
    text = changed.read_text(encoding="utf-8")
    try:
        git("init", "--quiet")
        git("add", "train.py", "configs")
        git("commit", "--quiet", "--message", "First")
        changed.write_text(text + "# a change\n", encoding="utf-8")
        environment = json.loads((run("run") / "environment.json").read_text(encoding="utf-8"))
        assert environment["git_commit"] == git("rev-parse", "HEAD")
        assert "+# a change" in environment["git_diff"]
    finally:
        changed.write_text(text, encoding="utf-8")
        subprocess.run(["rm", "-rf", project / ".git"], check=True)


def test_the_configuration_is_stored_resolved_and_settled(trained_run):
    text = (trained_run.path / "config.yaml").read_text(encoding="utf-8")
    assert "${" not in text
    stored = OmegaConf.create(text)
    assert (stored.trainer.max_epochs, stored.trainer.accelerator, stored.trainer.devices) == (3, "cpu", 1)
    assert stored.trainer.sync_batchnorm is False
    assert stored.callbacks.best_checkpoint.monitor == "val/loss"
    asked = OmegaConf.load(trained_run.path / ".hydra" / "overrides.yaml")
    assert asked == ["trainer.max_epochs=3"]


def test_the_screen_ends_with_results_places_and_what_to_type_next(trained_run):
    lines = trained_run.done.stdout.splitlines()
    accuracy = trained_run.results["metrics"]["test/acc"]
    assert any(line.startswith("test ") and f"test/acc {accuracy:.4f}" in line for line in lines)
    (typed,) = [line.removeprefix("next").strip() for line in lines if line.startswith("next ")]
    *command, checkpoint = shlex.split(typed)
    assert command == ["python", "eval.py"]
    # Paths are shown from where the command was typed.
    assert trained_run.path.parent / checkpoint.removeprefix("checkpoint=") == trained_run.path
    assert "Traceback" not in trained_run.done.stderr


def test_decisions_about_the_machine_are_in_the_log(trained_run):
    log = (trained_run.path / "train.log").read_text(encoding="utf-8")
    assert "machine: accelerator=cpu devices=1 precision=32-true" in log
    assert "run directory: " in log


def test_every_run_has_a_place_of_its_own_and_latest_links_to_the_newest(run, here, project):
    latest = project / "logs" / "latest"
    outside = run("outside")
    assert latest.is_symlink()
    assert latest.resolve() == outside.resolve()
    assert here("train", *QUICK, "name=places", "run_id=2").returncode == 0
    assert {path.name for path in (project / "logs" / "places").iterdir()} == {"2"}
    # Inside logs/ the link is relative, so that the folder can be moved.
    assert latest.readlink() == Path("places/2")
    assert list(latest.parent.glob(".latest*")) == []


@pytest.mark.slow
def test_runs_of_one_name_that_start_together_have_a_directory_each(project):
    command = [sys.executable, str(project / "train.py"), *QUICK, "name=together"]
    started = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(4)]
    assert [process.wait(timeout=300) for process in started] == [0, 0, 0, 0]
    runs = list((project / "logs" / "together").iterdir())
    assert len({json.loads((run / "results.json").read_text(encoding="utf-8"))["run_dir"] for run in runs}) == 4
    assert (project / "logs" / "latest").resolve() in runs


# The checkpoint.


def plain_types(node):
    """Give the types in a nested container, keys included."""
    yield type(node)
    if isinstance(node, dict):
        for key, value in node.items():
            yield from (type(key), *plain_types(value))
    elif isinstance(node, list):
        for value in node:
            yield from plain_types(value)


@pytest.mark.parametrize("name", ["best", "last"])
def test_a_checkpoint_holds_plain_types_and_plain_keys(trained_run, name):
    checkpoint = checkpoint_of(trained_run.path, name)
    for part in ("config", "data_spec"):
        assert type(checkpoint[part]) is dict
        assert set(plain_types(checkpoint[part])) <= {dict, list, str, int, float, bool, type(None)}
    prefixes = {key.partition(".")[0] for key in checkpoint["state_dict"]}
    assert prefixes == {"preprocess", "net"}
    assert not any("_orig_mod." in key or "module." in key for key in checkpoint["state_dict"])


def test_a_checkpoint_carries_what_was_asked_and_what_the_data_are(trained_run):
    checkpoint = checkpoint_of(trained_run.path)
    # Another machine decides for itself what `auto` means.
    assert checkpoint["config"]["trainer"]["accelerator"] == "auto"
    assert checkpoint["config"]["trainer"]["max_epochs"] == 3
    assert checkpoint["config"]["callbacks"]["best_checkpoint"]["monitor"] == "val/loss"
    spec = checkpoint["data_spec"]
    assert (spec["class_names"], spec["channels"], spec["image_size"]) == (list("0123456789"), 1, 8)
    assert checkpoint["state_dict"]["preprocess.mean"].flatten().tolist() == pytest.approx(spec["mean"])


# What switches change.


def test_the_same_seed_gives_the_same_weights(run):
    same = ("seed=3", "model.net.dropout=0.1", "trainer.limit_train_batches=6", "test=false")
    first, again = (weights_of(run(name, *same)) for name in ("first", "again"))
    assert difference(first, again) == 0


def test_zero_is_a_seed(run):
    few = ("trainer.limit_train_batches=2", "test=false")
    cases = (("a", "seed=0"), ("b", "seed=0"), ("c", "seed=1"))
    first, again, other = (weights_of(run(*case, *few)) for case in cases)
    assert difference(first, again) == 0
    assert difference(first, other) > 0


def test_a_deterministic_run_twice_gives_the_same_bits(run):
    deterministic = ("trainer.deterministic=true", "model=cnn", "model.mixup_alpha=0.2", "callbacks=ema", "seed=0")
    few = ("trainer.limit_train_batches=4",)
    first, again = (run(name, *deterministic, *few) for name in ("first", "again"))
    assert difference(weights_of(first), weights_of(again)) == 0
    assert results_of(first)["metrics"] == results_of(again)["metrics"]


def test_the_seed_reaches_python_numpy_and_torch(run, monkeypatch):
    drawn = []

    def note(self):
        drawn.append((random.random(), np.random.rand(), torch.rand(()).item()))

    monkeypatch.setattr(ImageClassifier, "on_train_start", note)
    for seed in (0, 0, 1):
        run(f"run {len(drawn)}", f"seed={seed}", "trainer.limit_train_batches=1", "test=false")
    assert drawn[0] == drawn[1]
    assert all(one != other for one, other in zip(drawn[0], drawn[2], strict=True))


def test_more_processes_than_cores_are_refused(here, tmp_path):
    done = here("train", *QUICK, "trainer.accelerator=cpu", "trainer.devices=5000", f"hydra.run.dir={tmp_path / 'run'}")
    assert done.returncode == 2
    assert "trainer.devices=5000 would start so many processes on" in done.stderr
    assert "Try trainer.devices=" in done.stderr


def test_sharing_a_model_out_needs_cuda_and_names_the_alternative(here, tmp_path):
    done = here("train", *QUICK, "strategy=fsdp", "trainer.accelerator=cpu", f"hydra.run.dir={tmp_path / 'run'}")
    assert done.returncode == 2
    assert "strategy=fsdp shares a model out over CUDA devices; this run uses cpu. Try strategy=ddp." in done.stderr


def test_batch_norms_are_not_synchronised_where_that_cannot_be_done(compose):
    settled = fit_to_machine(compose("trainer=ddp", "trainer.accelerator=cpu", "trainer.devices=2"))
    assert settled.trainer.sync_batchnorm is False
    settled = fit_to_machine(compose("trainer=ddp", "trainer.accelerator=cuda", "trainer.devices=2"))
    assert settled.trainer.sync_batchnorm is True


@pytest.mark.parametrize(("accelerator", "used"), [("cpu", True), ("cuda", True), ("mps", False)])
def test_channels_come_last_where_convolutions_are_faster_so(accelerator, used, compose):
    assert fit_to_machine(compose(f"trainer.accelerator={accelerator}")).model.channels_last is used
    for asked in (True, False):
        settled = fit_to_machine(compose(f"trainer.accelerator={accelerator}", f"model.channels_last={asked}"))
        assert settled.model.channels_last is asked


def test_a_profiler_is_used_if_one_is_asked_for_and_otherwise_none(compose, tmp_path):
    def profiler(*overrides):
        return build_trainer(fit_to_machine(compose(*overrides)), tmp_path, callbacks=[]).profiler

    none, simple = profiler(), profiler("trainer.profiler=simple")
    for each in (none, simple):
        with each.profile("a hook"):
            pass
    assert isinstance(none, NoProfiler)
    assert "a hook" not in none.summary()
    assert "a hook" in simple.summary()


def test_a_run_without_a_test_stage_has_no_test_metrics(run):
    results = results_of(run("run", "test=false"))
    assert {name.partition("/")[0] for name in results["metrics"]} >= {"train", "val"}
    assert not any(name.startswith("test/") for name in results["metrics"])


def test_a_run_without_callbacks_is_complete(run):
    run_dir = run("run", "callbacks=null")
    results = results_of(run_dir)
    assert (results["best_checkpoint"], results["best_score"]) == (None, None)
    assert results["metrics"]["test/acc"] > 0.1
    assert list(run_dir.rglob("*.ckpt")) == []
    # QUICK leaves out the export.
    assert results["exports"] == []
    assert not (run_dir / "export").exists()


@pytest.mark.parametrize(
    ("kind", "entries", "switch"),
    [
        (ModelSummary, "model_summary", "enable_model_summary"),
        (ProgressBar, "progress_bar", "enable_progress_bar"),
        (Checkpoint, "best_checkpoint last_checkpoint", "enable_checkpointing"),
    ],
)
def test_what_is_switched_off_does_not_come_back_from_lightning(kind, entries, switch, compose, tmp_path):
    def number(*overrides):
        settled = fit_to_machine(compose(*overrides))
        trainer = build_trainer(settled, tmp_path, build_callbacks(settled))
        return sum(isinstance(callback, kind) for callback in trainer.callbacks)

    assert number() == len(entries.split())
    assert number(*(f"callbacks.{name}=null" for name in entries.split())) == 0
    assert number(f"trainer.{switch}=false") == 0


def test_minimal_callbacks_are_the_two_checkpoints_alone(compose):
    built = build_callbacks(fit_to_machine(compose("callbacks=minimal", "export=null")))
    assert [(type(callback), callback.filename) for callback in built] == [
        (ModelCheckpoint, "best"),
        (LastCheckpoint, "last"),
    ]


def test_null_switches_one_callback_off(compose):
    def kinds(*overrides):
        return {type(callback) for callback in build_callbacks(fit_to_machine(compose(*overrides)))}

    assert kinds() - kinds("callbacks.early_stopping=null") == {EarlyStopping}


def test_arguments_of_callbacks_are_lightnings(run):
    run_dir = run("run", "trainer.limit_train_batches=7", "callbacks.best_checkpoint.filename='{step} batches'")
    assert checkpoint_of(run_dir, "step=7 batches")["global_step"] == 7


def test_early_stopping_ends_a_run_that_no_longer_improves(run):
    # With a rate of zero nothing improves after the first validation.
    run_dir = run("run", "optimizer.lr=0.0", "callbacks.early_stopping.patience=2", "trainer.max_epochs=9")
    assert results_of(run_dir)["epochs"] == 3


def test_a_trial_run_of_a_few_batches_writes_no_checkpoint(run):
    run_dir = run("run", "trainer.fast_dev_run=3")
    assert results_of(run_dir)["steps"] == 3
    assert list(run_dir.rglob("*.ckpt")) == []


def test_another_monitor_decides_on_the_best_checkpoint(run):
    run_dir = run("run", "monitor=val/acc", "mode=max", "trainer.max_epochs=3")
    accuracies = [row["val/acc"] for row in metrics_rows(run_dir) if "val/acc" in row]
    assert results_of(run_dir)["best_score"] == pytest.approx(max(accuracies))


def test_fp16_on_a_cpu_becomes_bf16_and_is_recorded(here, tmp_path):
    done = here("train", *QUICK, "precision=16-mixed", "trainer.accelerator=cpu", f"hydra.run.dir={tmp_path / 'run'}")
    assert done.returncode == 0
    assert "precision=16-mixed needs a GPU: using bf16-mixed" in done.stdout
    assert results_of(tmp_path / "run")["precision"] == "bf16-mixed"


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["bf16-true", "64-true", "bf16-mixed"])
def test_other_precisions_train_and_test(run, precision):
    results = results_of(run("run", f"precision={precision}"))
    assert results["precision"] == precision
    assert results["metrics"]["test/acc"] > 0.5


def test_a_run_never_writes_into_another(run, here, tmp_path):
    run_dir = run("run")

    def state():
        return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in run_dir.rglob("*") if path.is_file()}

    before = state()
    done = here("train", *QUICK, f"hydra.run.dir={run_dir}")
    assert done.returncode == 2
    assert f"{run_dir} already holds a run" in done.stderr
    assert "Leave out run_id= and hydra.run.dir=" in done.stderr
    assert state() == before


def test_settings_that_lightning_refuses_end_in_one_message(here, tmp_path):
    done = here("train", *QUICK, "trainer.strategy=abacus", f"hydra.run.dir={tmp_path / 'run'}")
    assert done.returncode == 2
    assert "abacus" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ("+optimizer.betas=[0.9,2.0]", "Invalid beta parameter at index 1: 2.0"),
        ("+callbacks.best_checkpoint.save_top_k=-2", "Invalid value for save_top_k=-2"),
    ],
)
def test_a_value_that_a_library_refuses_ends_in_one_message(wrong, told, here, tmp_path):
    done = here("train", *QUICK, wrong, f"hydra.run.dir={tmp_path / 'run'}")
    assert done.returncode == 2
    assert told in done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def test_a_run_that_diverges_has_failed_and_says_so(here, tmp_path):
    done = here("train", *QUICK, "optimizer.lr=1e9", f"hydra.run.dir={tmp_path / 'run'}", "optimizer.weight_decay=1.0")
    assert done.returncode == 1
    assert "Error: Training diverged: " in done.stderr
    assert "Try a smaller optimizer.lr" in done.stderr
    assert results_of(tmp_path / "run")["errors"] != []


def test_a_monitor_that_is_never_logged_ends_in_one_message(here, tmp_path):
    done = here("train", *QUICK, "monitor=val/accuracy", f"hydra.run.dir={tmp_path / 'run'}")
    assert done.returncode == 2
    assert "val/accuracy" in done.stderr
    assert "val/loss" in done.stderr


def test_a_failure_exits_1_and_leaves_its_traceback_in_the_log(here, tmp_path, monkeypatch):
    def fail(self, batch, batch_idx):
        raise RuntimeError("out of luck")

    monkeypatch.setattr(ImageClassifier, "training_step", fail)
    done = here("train", *QUICK, f"hydra.run.dir={tmp_path / 'run'}")
    assert done.returncode == 1
    assert not (tmp_path / "run" / "results.json").exists()
    log = (tmp_path / "run" / "train.log").read_text(encoding="utf-8")
    assert "Traceback (most recent call last)" in log
    assert "RuntimeError: out of luck" in log


def test_a_grid_has_a_directory_for_each_job(here, project):
    # Wherever -m stands.
    done = here("train", "seed=1,2", *QUICK, "trainer.limit_train_batches=2", "-m", "name=grid", "run_id=pair")
    assert done.returncode == 0, done.stdout + done.stderr
    grid = project / "logs" / "grid" / "sweeps" / "pair"
    assert {path.name for path in grid.iterdir() if path.is_dir()} == {"0", "1"}
    assert [results_of(grid / job)["seed"] for job in ("0", "1")] == [1, 2]
    assert difference(weights_of(grid / "0"), weights_of(grid / "1")) > 0


# Whole runs and several processes.


@pytest.mark.slow
def test_two_processes_share_one_run_and_end_with_the_weights_of_one(door, project, tmp_path):
    same = (
        "model=mlp",
        "model.net.dropout=0.0",
        "scheduler=constant",
        "trainer.max_steps=50",
        "export=null",
        "logger=null",
    )
    before = set((project / "logs").glob("*/*"))
    done = door("train", *same, *TWO_PROCESSES)
    assert done.returncode == 0, done.stderr
    (two,) = {path for path in (project / "logs").glob("*/*") if path.parent.name != "latest"} - before
    results = results_of(two)
    assert (results["world_size"], results["steps"]) == (2, 50)
    assert (project / "logs" / "latest").resolve() == two.resolve()

    one = tmp_path / "one"
    assert door("train", *same, f"hydra.run.dir={one}").returncode == 0
    assert difference(weights_of(one), weights_of(two)) < 1e-5
    assert results["metrics"]["test/acc"] == pytest.approx(results_of(one)["metrics"]["test/acc"], abs=1e-6)
    assert results["metrics"]["val/loss"] == pytest.approx(results_of(one)["metrics"]["val/loss"], abs=1e-5)


FEW_IMAGES = ("data=synthetic", "data.train_samples=64", "data.val_samples=21", "data.test_samples=21")


@pytest.mark.slow
def test_one_checkpoint_gives_the_same_on_one_and_on_two_processes(door, here, run, tmp_path):
    run_dir = run("run", *FEW_IMAGES, "trainer.max_epochs=3")
    measured = []
    for devices, start in ((1, here), (2, door)):
        output = tmp_path / f"on {devices}"
        shared = ("strategy=ddp", "trainer.accelerator=cpu", f"trainer.devices={devices}", "data.batch_size=4")
        done = start("eval", f"checkpoint={run_dir}", *shared, f"hydra.run.dir={output}")
        assert done.returncode == 0, done.stderr
        measured.append((results_of(output), (output / "confusion_matrix.csv").read_text(encoding="utf-8")))
    (one, counts), (two, same_counts) = measured
    assert (one["world_size"], two["world_size"]) == (1, 2)
    assert one["samples"] == two["samples"] == 21
    assert counts == same_counts
    assert one["metrics"]["test/acc"] == two["metrics"]["test/acc"]
    assert one["metrics"] == pytest.approx(two["metrics"], abs=1e-6)


@pytest.mark.slow
def test_one_image_on_two_processes_is_refused_and_not_waited_for(door, run, tmp_path):
    run_dir = run("run", *FEW_IMAGES)
    few = ("data.test_samples=1", "strategy=ddp", "trainer.accelerator=cpu", "trainer.devices=2")
    done = door("eval", f"checkpoint={run_dir}", *few, f"hydra.run.dir={tmp_path / 'two'}")
    assert done.returncode == 2
    assert "2 processes cannot share the test split of 1 images" in done.stderr
    assert "Try trainer.devices=1" in done.stderr


@pytest.mark.slow
def test_a_backbone_unfrozen_on_two_processes_trains_as_on_one(door, here, tmp_path):
    same = (*QUICK, "scheduler=constant", "trainer.max_epochs=2", "trainer.limit_train_batches=5")
    frozen = ("model.freeze_backbone=true", "model.unfreeze_epoch=1", "test=false")
    one, two = tmp_path / "one", tmp_path / "two"
    assert here("train", *same, *frozen, f"hydra.run.dir={one}").returncode == 0
    done = door("train", *same, *frozen, *TWO_PROCESSES, f"hydra.run.dir={two}")
    assert done.returncode == 0, done.stderr
    assert difference(weights_of(one), weights_of(two)) < 1e-5


@pytest.mark.slow
def test_two_processes_write_into_a_directory_with_any_name(door, tmp_path):
    run_dir = tmp_path / "a rün = 'quoted'"
    written = "hydra.run.dir='" + str(run_dir).replace("'", "\\'") + "'"
    done = door("train", *QUICK, *TWO_PROCESSES, written)
    assert done.returncode == 0, done.stderr
    assert results_of(run_dir)["world_size"] == 2
    assert [path.name for path in tmp_path.iterdir() if (path / "environment.json").exists()] == [run_dir.name]


@pytest.mark.slow
def test_a_grid_of_runs_in_two_processes_has_a_directory_for_each_job(door, project):
    done = door("train", "-m", "seed=1,2", *QUICK, *TWO_PROCESSES, "name=grid", "run_id=four")
    assert done.returncode == 0, done.stderr
    grid = project / "logs" / "grid" / "sweeps" / "four"
    assert {path.name for path in grid.iterdir() if path.is_dir()} == {"0", "1"}
    assert [(results_of(grid / job)["seed"], results_of(grid / job)["world_size"]) for job in ("0", "1")] == [
        (1, 2),
        (2, 2),
    ]
    assert not (project / "logs" / "grid" / "four").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], {"world_size": 1, "precision": "32-true"}),
        (["trainer=ddp", "precision=16-mixed"], {"world_size": 1, "precision": "bf16-mixed"}),
        ([*TWO_PROCESSES], {"world_size": 2, "precision": "32-true"}),
        (["model=mlp", "scheduler=constant", "logger=wandb"], {"world_size": 1, "precision": "32-true"}),
        (["debug=smoke"], {"world_size": 1, "epochs": 3}),
    ],
)
def test_commands_of_the_contract_run_from_another_folder_and_write_nothing_there(overrides, expected, door, project):
    done = door("train", *overrides)
    assert done.returncode == 0, done.stderr
    run_dir = (project / "logs" / "latest").resolve()
    assert run_dir.is_relative_to(project / "logs")
    results = results_of(run_dir)
    assert expected.items() <= results.items()
    assert results["metrics"]["test/acc"] > 0.95
    assert list(Path(done.args[1]).parent.glob("outputs")) == []


@pytest.mark.slow
def test_a_run_is_started_by_any_python_with_the_packages(project, tmp_path):
    command = [sys.executable, "train.py", *QUICK, f"hydra.run.dir={tmp_path / 'run'}"]
    assert subprocess.run(command, cwd=project, capture_output=True, check=False).returncode == 0
    assert results_of(tmp_path / "run")["world_size"] == 1
