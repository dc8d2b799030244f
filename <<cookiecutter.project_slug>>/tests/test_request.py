"""Wrong requests end in one message, exit code 2 and nothing on disk; right ones reach the configuration."""

import os

import pytest
from omegaconf import OmegaConf

from << cookiecutter.package_name >>.configuration import ConfigError
from << cookiecutter.package_name >>.request import check, parse, quote, single_requests, switch_off

# What is typed, and what the answer must name: what was found, what is allowed, what to type.
WRONG = {
    "trainer.max_epoch=3": (
        "trainer.max_epoch does not exist",
        "The nearest name is trainer.max_epochs",
        "Try trainer.max_epochs=",
    ),
    "max_epochs=3": ("max_epochs does not exist", "The nearest name is trainer.max_epochs", "Try trainer.max_epochs="),
    "lr=3": ("lr does not exist", "The nearest name is optimizer.lr", "Try optimizer.lr="),
    "+anything=1": ("anything does not exist", "Allowed here: name, run_id, seed", "Try python train.py --cfg job"),
    "+trainer.anything=1": ("trainer.anything does not exist", "Allowed here: ", "Try "),
    "precision=fp8": (
        "precision=fp8 does not exist",
        "Allowed: 16-mixed, 16-true, 32-true, 64-true, bf16-mixed, bf16-true",
        "Try precision=",
    ),
    "precision=32": ("precision=32 does not exist", "32-true", "Try precision=32-true."),
    "model=resnet": ("model=resnet does not exist", "Allowed: ", "Try model="),
    "model=null": ("model=null does not exist", "Allowed: ", "Try model="),
    "optimizer.lr=fast": ("got fast", "optimizer.lr must be float", "Try optimizer.lr="),
    "trainer.max_epochs=1.5": ("got 1.5", "trainer.max_epochs must be int or null", "Try trainer.max_epochs="),
    "trainer.fast_dev_run=maybe": (
        "got maybe",
        "trainer.fast_dev_run must be bool or int",
        "Try trainer.fast_dev_run=false",
    ),
    "trainer.gradient_clip_algorithm=sum": (
        "got sum",
        "must be norm or value",
        "Try trainer.gradient_clip_algorithm=norm",
    ),
    "data.batch_size=null": ("got null", "data.batch_size must be int", "Try data.batch_size="),
    "data.batch_size=true": ("got true", "data.batch_size must be int", "Try data.batch_size="),
    "test=3": ("got 3", "test must be bool", "Try test=true"),
    "callbacks.early_stopping.patience=soon": (
        "got soon",
        "patience must be int",
        "Try callbacks.early_stopping.patience=",
    ),
    "resume=auto": ("resume=auto is not built yet", "cannot be continued", "without resume="),
    "name=../x": ("got ../x", "name must consist of letters, digits", "Try name=trial-1"),
    "run_id=a/b": ("got a/b", "run_id must consist of letters, digits", "Try run_id=trial-1"),
    "foo": ("'foo'", "key=value", "Try python train.py --help"),
    "=3": ("a value without a key", "key=value", "Try python train.py --help"),
    "~model": ("A run cannot do without model", "Leave out", "~model"),
    "mode=up": ("got up", "mode must be min or max", "Try mode=min"),
    "experiment=exmple": ("experiment=exmple does not exist", "Allowed: example, null", "Try experiment=example"),
    "hydra.run.dir=": ("cannot be written", "no folder that you may write to", "Try hydra.run.dir=DIR"),
}

# Requests, and what they change.
RIGHT = {
    "an int for a float": {
        "optimizer.lr=1": ("optimizer.lr", 1),
        "trainer.limit_train_batches=5": ("trainer.limit_train_batches", 5),
    },
    "an int for a switch": {"trainer.fast_dev_run=3": ("trainer.fast_dev_run", 3), "run_id=7": ("run_id", 7)},
    "a switch": {"trainer.fast_dev_run=true": ("trainer.fast_dev_run", True)},
    "null where it is declared": {
        "trainer.max_epochs=null": ("trainer.max_epochs", None),
        "trainer.gradient_clip_val=null": ("trainer.gradient_clip_val", None),
    },
    "other declared types": {
        "trainer.max_time=00:01:00:00": ("trainer.max_time", "00:01:00:00"),
        "trainer.devices=[0,1]": ("trainer.devices", [0, 1]),
        "trainer.sync_batchnorm=true": ("trainer.sync_batchnorm", True),
        "trainer.profiler=simple": ("trainer.profiler", "simple"),
    },
    "an entry switched off": {"callbacks.early_stopping=null": ("callbacks.early_stopping", None)},
    "groups switched off": {
        "callbacks=null": ("callbacks.early_stopping", None),
        "export=null": ("export", None),
        "logger=null": ("logger", None),
    },
    "an argument that the file does not list": {
        "+callbacks.early_stopping.min_delta=0.01": ("callbacks.early_stopping.min_delta", 0.01)
    },
}


@pytest.mark.parametrize("typed", WRONG)
def test_a_wrong_request_names_what_was_found_what_is_allowed_and_what_to_type(typed, here):
    done = here("train", typed)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("Error: ") == 1
    for part in WRONG[typed]:
        assert part in done.stderr


@pytest.mark.parametrize("kind", RIGHT)
def test_a_right_request_reaches_the_configuration(kind, compose):
    check("train", switch_off(list(RIGHT[kind])))
    cfg = compose(*RIGHT[kind])
    for key, value in RIGHT[kind].values():
        assert OmegaConf.select(cfg, key) == value


@pytest.mark.parametrize(
    "value",
    ["a b", "o u't,[=$", 'x"y', 'it\'s "q"', "back\\", "back\\'x\"", "jü", "a=b,c", "{x}", "", "null", "1"],
)
def test_a_path_reaches_the_configuration_as_it_was_typed(value):
    (override,) = parse([quote(f"checkpoint={value}")])
    assert override.value() == value


def test_only_what_hydra_cannot_read_is_quoted():
    assert quote("name=für") == "name='für'"
    for typed in ("optimizer.lr=1", "model.net.widths=[1,2]", "seed=1,2", "name='a b'", "-m", "~export", "foo"):
        assert quote(typed) == typed


def test_a_file_in_the_place_of_logs_is_told(here, project):
    logs, aside = project / "logs", project / "logs aside"
    if logs.exists():
        logs.rename(aside)
    logs.touch()
    try:
        done = here("train", "trainer.fast_dev_run=true")
    finally:
        logs.unlink()
        if aside.exists():
            aside.rename(logs)
    assert done.returncode == 2
    assert f"{logs} is no folder that you may write to" in done.stderr


def test_every_job_of_a_grid_is_checked():
    assert list(single_requests(["seed=1,2", "model=mlp"], multirun=True)) == [
        ["seed=1", "model=mlp"],
        ["seed=2", "model=mlp"],
    ]
    first, second = single_requests(["seed=1,x"], multirun=True)
    check("train", first)
    with pytest.raises(ConfigError, match=r"seed must be int, got x\. Try seed="):
        check("train", second)


def test_a_wrong_grid_is_refused_before_its_first_job(here, project):
    done = here("train", "-m", "seed=1,x", "name=wrong-grid")
    assert done.returncode == 2
    assert "seed must be int, got x" in done.stderr
    assert not (project / "logs" / "wrong-grid").exists()


def test_a_grid_without_multirun_names_the_option(here):
    done = here("train", "model=cnn,mlp")
    assert done.returncode == 2
    assert "--multirun" in done.stderr


@pytest.fixture
def without_torch(tmp_path):
    """Put a torch before the real one that leaves a mark and raises when it is imported."""
    folder = tmp_path / "poison"
    folder.mkdir()
    mark = folder / "imported"
    (folder / "torch.py").write_text(f"open({str(mark)!r}, 'w').close()\nraise ImportError('poisoned')\n")
    return {"PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}, mark


def files_of(folder):
    return {path for path in folder.rglob("*") if "__pycache__" not in path.parts}


@pytest.mark.parametrize("typed", ["trainer.max_epoch=3", "precision=fp8", "optimizer.lr=fast"])
def test_a_wrong_request_ends_before_torch_is_loaded_and_leaves_nothing(typed, door, without_torch, project, tmp_path):
    environment, mark = without_torch
    before = files_of(project) | files_of(tmp_path)
    done = door("train", typed, **environment)
    assert done.returncode == 2
    assert done.stderr.strip().startswith("Error: ")
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stdout == ""
    assert not mark.exists()
    assert files_of(project) | files_of(tmp_path) == before


def test_the_composed_configuration_is_shown_without_torch(door, without_torch):
    environment, mark = without_torch
    done = door("train", "--cfg", "job", "trainer=ddp", "precision=16-mixed", **environment)
    assert done.returncode == 0
    shown = OmegaConf.create(done.stdout)
    assert (shown.trainer.strategy, shown.trainer.precision) == ("ddp", "16-mixed")
    assert not mark.exists()


def test_a_wrong_request_shows_its_traceback_when_asked_to(door):
    done = door("train", "precision=fp8", HYDRA_FULL_ERROR="1")
    assert done.returncode == 1
    assert "Traceback (most recent call last)" in done.stderr
    assert "precision=fp8 does not exist" in done.stderr


def test_a_value_that_only_the_run_can_judge_ends_in_one_message_and_a_traceback_in_the_log(here, tmp_path):
    run_dir = tmp_path / "run"
    done = here("train", "data.batch_size=0", f"hydra.run.dir={run_dir}")
    assert done.returncode == 2
    assert done.stderr.strip() == "Error: data.batch_size must be at least 1, got 0. Try data.batch_size=64."
    assert "Traceback" not in done.stdout
    assert "Traceback (most recent call last)" in (run_dir / "train.log").read_text(encoding="utf-8")


def test_an_unknown_argument_of_a_class_is_refused_with_those_that_exist(here):
    done = here("train", "+data.batch_sise=3")
    assert done.returncode == 2
    for part in ("batch_sise", "batch_size", "val_fraction", "split_seed"):
        assert part in done.stderr
