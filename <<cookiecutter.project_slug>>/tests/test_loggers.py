"""Whatever the logger, a run finishes: without credentials, without a server, without a logger."""

import csv
import json
import shlex
from pathlib import Path

import pytest
import wandb
from lightning.pytorch.loggers import TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from << cookiecutter.package_name >>.configuration import ConfigError
from << cookiecutter.package_name >>.machine import fit_to_machine
from << cookiecutter.package_name >>.metrics_table import MetricsTable
from << cookiecutter.package_name >>.training import build_loggers

QUICK = ("model=mlp", "export=null", "trainer.max_epochs=1", "trainer.enable_progress_bar=false")


def results_of(run_dir):
    return json.loads((run_dir / "results.json").read_text(encoding="utf-8"))


def lines_about_wandb(done):
    """Give what was printed about wandb. The names of the folders must not contain it."""
    return [line for line in (done.stdout + done.stderr).splitlines() if "wandb" in line.lower()]


@pytest.fixture
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("loggers") / "a rün"


@pytest.fixture
def forgetful_wandb():
    """Let wandb read the environment anew: it keeps its settings for as long as the process lives."""
    wandb.teardown()
    yield
    wandb.teardown()


def says_once_that_wandb_is_offline(done, folder):
    (line,) = lines_about_wandb(done)
    *said, command, action, place = shlex.split(line)
    assert " ".join(said) == "wandb: logging offline. Upload later:"
    assert (command, action) == ("wandb", "sync")
    (record,) = (folder / "wandb" / Path(place).name).glob("run-*.wandb")
    assert record.stat().st_size > 0
    assert results_of(folder)["metrics"]["test/acc"] > 0.1


def test_wandb_without_credentials_logs_offline_and_says_so_once(here, folder, forgetful_wandb):
    done = here("train", *QUICK, "logger=wandb", f"hydra.run.dir='{folder}'")
    assert done.returncode == 0, done.stderr
    says_once_that_wandb_is_offline(done, folder)


@pytest.mark.slow
def test_wandb_asks_nothing_where_nobody_can_answer(door, folder):
    done = door("train", *QUICK, "logger=wandb", f"hydra.run.dir='{folder}'")
    assert done.returncode == 0, done.stderr
    says_once_that_wandb_is_offline(done, folder)


def test_wandb_can_be_disabled_from_outside(here, folder, monkeypatch, forgetful_wandb):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    done = here("train", *QUICK, "logger=wandb", f"hydra.run.dir='{folder}'")
    assert done.returncode == 0, done.stderr
    assert lines_about_wandb(done) == []
    assert list(folder.rglob("*.wandb")) == []
    assert results_of(folder)["metrics"]["test/acc"] > 0.1


@pytest.mark.slow
def test_wandb_with_a_key_but_no_server_goes_on_offline(door, folder):
    unreachable = {"WANDB_API_KEY": "0123456789" * 4, "WANDB_BASE_URL": "http://127.0.0.1:9"}
    done = door("train", *QUICK, "logger=wandb", f"hydra.run.dir='{folder}'", **unreachable)
    assert done.returncode == 0, done.stderr
    ours = [line for line in lines_about_wandb(done) if line.startswith(("wandb: online", "wandb: logging"))]
    assert [line.partition(" (")[0].partition(". ")[0] for line in ours] == [
        "wandb: online failed",
        "wandb: logging offline",
    ]
    assert len(list((folder / "wandb").glob("offline-run-*/run-*.wandb"))) == 1
    assert results_of(folder)["metrics"]["test/acc"] > 0.1


@pytest.mark.slow
def test_two_processes_write_one_wandb_run(door, folder):
    two = ("trainer=ddp", "trainer.accelerator=cpu", "trainer.devices=2")
    done = door("train", *QUICK, *two, "logger=wandb", f"hydra.run.dir='{folder}'")
    assert done.returncode == 0, done.stderr
    assert len(lines_about_wandb(done)) == 1
    assert len(list((folder / "wandb").glob("offline-run-*"))) == 1


@pytest.mark.slow
def test_every_job_of_a_grid_has_a_wandb_run_of_its_own(door, project):
    done = door("train", "-m", "seed=1,2", *QUICK, "logger=wandb", "name=grid-wandb", "run_id=pair")
    assert done.returncode == 0, done.stderr
    grid = project / "logs" / "grid-wandb" / "sweeps" / "pair"
    assert [len(list((grid / job / "wandb").glob("offline-run-*"))) for job in ("0", "1")] == [1, 1]


@pytest.mark.parametrize("logger", ["null", pytest.param("csv", marks=pytest.mark.slow)])
def test_the_table_of_metrics_is_always_written(here, tmp_path, logger):
    done = here("train", *QUICK, f"logger={logger}", f"hydra.run.dir={tmp_path / 'run'}")
    assert done.returncode == 0, done.stderr
    with (tmp_path / "run" / "metrics.csv").open(encoding="utf-8", newline="") as file:
        (accuracy,) = [float(row["test/acc"]) for row in csv.DictReader(file) if row["test/acc"]]
    assert accuracy == pytest.approx(results_of(tmp_path / "run")["metrics"]["test/acc"])
    assert not (tmp_path / "run" / "wandb").exists()


def test_tensorboard_is_written_into_the_run_directory(here, tmp_path):
    done = here("train", *QUICK, "logger=tensorboard", f"hydra.run.dir={tmp_path / 'run'}")
    assert done.returncode == 0, done.stderr
    written = {}
    for file in (tmp_path / "run").rglob("events.out.tfevents.*"):
        events = EventAccumulator(str(file)).Reload()
        written |= {name: events.Scalars(name)[-1].value for name in events.Tags()["scalars"]}
    metrics = results_of(tmp_path / "run")["metrics"]
    for name in ("train/loss", "val/acc", "test/acc"):
        assert written[name] == pytest.approx(metrics[name])


def test_the_table_comes_before_the_chosen_logger(compose, tmp_path):
    settled = fit_to_machine(compose("logger=tensorboard"))
    loggers = build_loggers(settled, tmp_path, {"seed": 0})
    assert [type(logger) for logger in loggers] == [MetricsTable, TensorBoardLogger]
    assert Path(loggers[0].log_dir) == tmp_path


def test_a_row_that_was_cut_inside_its_step_does_not_count(tmp_path):
    # Of step 35, of which the digits were not yet on the disk.
    (tmp_path / "metrics.csv").write_text("loss,step\r\n0.5,1\r\n0.4,3", encoding="utf-8")
    table = MetricsTable(tmp_path, done_steps=10)
    table.log_metrics({"loss": 0.3}, step=10)
    table.save()
    with (tmp_path / "metrics.csv").open(encoding="utf-8", newline="") as file:
        assert file.read() == "loss,step\r\n0.5,1\r\n0.3,10\r\n"


def test_a_table_that_was_not_begun_is_begun(tmp_path):
    (tmp_path / "metrics.csv").touch()
    table = MetricsTable(tmp_path, done_steps=10)
    table.log_metrics({"loss": 0.3}, step=10)
    table.save()
    assert (tmp_path / "metrics.csv").read_text(encoding="utf-8").splitlines() == ["loss,step", "0.3,10"]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"\xff\xfe\x00step", "can't decode byte 0xff"),
        (b"\x00" * 80, "it has no column step"),
        (b"epoch,loss\r\n0,0.5\r\n", "it has no column step"),
        (None, "Is a directory"),
    ],
)
def test_what_is_no_table_of_metrics_is_refused_and_left_as_it_is(content, told, tmp_path):
    table = tmp_path / "metrics.csv"
    table.mkdir() if content is None else table.write_bytes(content)
    with pytest.raises(ConfigError, match=rf"metrics\.csv is not the table .*{told}.*Try: mv "):
        MetricsTable(tmp_path, done_steps=10)
    assert table.is_dir() if content is None else table.read_bytes() == content


def test_a_run_whose_table_was_damaged_goes_on_as_it_is_told(here, tmp_path):
    few = (*QUICK, "logger=null", "trainer.limit_train_batches=2", f"hydra.run.dir={tmp_path / 'run'}")
    assert here("train", *few).returncode == 0
    (tmp_path / "run" / "metrics.csv").write_bytes(b"\xff\x00")
    more = ("train", f"resume={tmp_path / 'run'}", "trainer.max_epochs=2")
    done = here(*more)
    assert done.returncode == 2
    assert "Try: mv run/metrics.csv run/metrics.old" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    (tmp_path / "run" / "metrics.csv").rename(tmp_path / "run" / "metrics.old")
    assert here(*more).returncode == 0


def test_a_trial_run_of_a_few_batches_opens_no_logger(here, tmp_path):
    done = here("train", *QUICK, "logger=tensorboard", "trainer.fast_dev_run=true", f"hydra.run.dir={tmp_path / 'run'}")
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "run").rglob("events.out.tfevents.*")) == []


def test_a_wandb_run_that_goes_on_keeps_its_id(here, tmp_path):
    few = ("logger=wandb", "trainer.limit_train_batches=2", f"hydra.run.dir={tmp_path / 'run'}")
    assert here("train", *QUICK, *few).returncode == 0
    assert here("train", f"resume={tmp_path / 'run'}", "trainer.max_epochs=2").returncode == 0
    stored = (tmp_path / "run" / "wandb" / "run_id.txt").read_text(encoding="utf-8").strip()
    folders = [path.name for path in (tmp_path / "run" / "wandb").glob("offline-run-*")]
    assert len(folders) == 2
    assert all(name.endswith(f"-{stored}") for name in folders)
