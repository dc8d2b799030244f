"""Wrong requests end in one message, exit code 2 and nothing on disk; right ones reach the configuration."""

import os
import shlex
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from << cookiecutter.package_name >>.comparison import Declaration, compare, declarations, fits
from << cookiecutter.package_name >>.configuration import CONFIG_DIR, ConfigError
from << cookiecutter.package_name >>.request import (
    PRESETS,
    check,
    parse,
    quote,
    single_requests,
    switch_off,
)

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
    "trainer.max_epochs=1.5": ("got 1.5", "trainer.max_epochs must be int >= -1 or null", "Try trainer.max_epochs="),
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
    "name=../x": ("got ../x", "name must consist of letters, digits", "Try name=trial-1"),
    "run_id=a/b": ("got a/b", "run_id must consist of letters, digits", "Try run_id=trial-1"),
    "foo": ("'foo'", "key=value", "Try python train.py --help"),
    "=3": ("a value without a key", "key=value", "Try python train.py --help"),
    "~model": ("A run cannot do without model", "Leave out", "~model"),
    "mode=up": ("got up", "mode must be min or max", "Try mode=min"),
    "experiment=exmple": ("experiment=exmple does not exist", "Allowed: example, null", "Try experiment=example"),
    "hydra.run.dir=": ("Nothing can be written to", "no folder that you may write to", "Try hydra.run.dir=DIR"),
}

# Values of the right type that no run could use.
IMPOSSIBLE = {
    "data.batch_size=0": ("data.batch_size must be int >= 1, got 0", "Try data.batch_size=64"),
    "++data.batch_size=-1": ("data.batch_size must be int >= 1, got -1", "Try data.batch_size=64"),
    "data.val_fraction=1.0": ("data.val_fraction must be 0 < float < 1, got 1.0", "Try data.val_fraction="),
    "data.seed=abc": ("data.seed must be 0 <= int <= 4294967295, got abc", "Try data.seed=0"),
    "seed=4294967296": ("seed must be 0 <= int <= 4294967295, got 4294967296", "Try seed=0"),
    "optimizer.lr=-1": ("optimizer.lr must be float >= 0, got -1", "Try optimizer.lr=0.003"),
    "optimizer.lr=inf": ("got inf, which is not finite", "Try optimizer.lr=0.003"),
    "optimizer.lr=${nope}": ("optimizer.lr=${nope} cannot be computed", "'nope' not found", "Try "),
    "model.net.widths=[32,0]": ("model.net.widths must be list of int >= 1, got [32,0]", "Try model.net.widths=[32,"),
    "scheduler=step scheduler.step_size=0": ("scheduler.step_size must be int >= 1, got 0", "Try scheduler.step_size="),
    "trainer.max_epochs=-2": ("trainer.max_epochs must be int >= -1 or null, got -2", "Try trainer.max_epochs="),
    "trainer.max_time=soon": ("must be DD:HH:MM:SS or dict or null, got soon", "Try trainer.max_time="),
    "trainer.limit_train_batches=1.5": ("must be int >= 0 or 0 <= float <= 1, got 1.5", "Try trainer.limit_"),
    "trainer.devices=0": ("trainer.devices must be -1 or int >= 1 or str or list of int >= 0, got 0", "Try "),
    "data.batch_size=???": ("data.batch_size has no value yet", "must be int >= 1: over all", "Try data.batch_size=64"),
    "name=???": ("name has no value yet", "It must be str", "Try name="),
    "+data.anything=???": ("data.anything does not exist", "Allowed here: ", "Try "),
}

# Values that are possible one by one.
CONTRADICTORY = {
    "monitor=val/auroc": ("monitor=val/auroc is never logged", "Allowed: val/loss, val/acc,", "Try monitor=val/loss"),
    "monitor=test/loss": ("monitor=test/loss is never logged", "Allowed: val/loss", "Try monitor=val/loss"),
    "monitor=train/f1 mode=max": ("monitor=train/f1 is never logged", "train/loss, train/acc", "Try monitor=val/loss"),
    "monitor=val/f1 mode=max model.metrics.f1=null": ("monitor=val/f1 is never logged", "Allowed: ", "Try monitor="),
    "callbacks.early_stopping.monitor=val/no": (
        "callbacks.early_stopping.monitor=val/no is never logged",
        "Allowed: val/loss",
        "Try callbacks.early_stopping.monitor=val/loss",
    ),
    "scheduler=reduce_on_plateau scheduler.monitor=val/no": ("scheduler.monitor=val/no is never logged", "Allowed: "),
    "monitor=val/acc": ("mode=min contradicts monitor=val/acc", "largest value is the best", "Try mode=max"),
    "mode=max": ("mode=max contradicts monitor=val/loss", "smallest value is the best", "Try mode=min"),
    "model.train_metrics=[auroc]": ("model.train_metrics has auroc", "Allowed: acc, f1", "Try model.train_metrics="),
    "trainer.limit_val_batches=0": (
        "trainer.limit_val_batches=0 leaves no validation",
        "callbacks.best_checkpoint waits for one",
        "Try trainer.limit_val_batches=1.0",
    ),
    "trainer.limit_val_batches=0 monitor=train/loss": (
        "trainer.limit_val_batches=0 leaves no validation",
        "callbacks.early_stopping waits for one",
        "callbacks.early_stopping=null",
    ),
    "trainer.limit_val_batches=0 callbacks=null scheduler=reduce_on_plateau": ("scheduler waits for one", "Try "),
    "trainer.check_val_every_n_epoch=21": (
        "trainer.check_val_every_n_epoch=21 with trainer.max_epochs=20 leaves no validation",
        "Try trainer.check_val_every_n_epoch=1",
    ),
    "scheduler=reduce_on_plateau trainer.check_val_every_n_epoch=null trainer.val_check_interval=4": (
        "scheduler.frequency must be int >= 1, got null",
        "Try scheduler.frequency=1",
    ),
    "trainer.max_epochs=-1": ("has no end", "max_epochs=-1 and trainer.max_steps=-1", "Try trainer.max_epochs=20"),
    "trainer.max_epochs=null trainer.max_time=00:01:00:00": ("has no end", "trainer.max_epochs=null", "Try trainer."),
    "data.val_fraction=0.5 data.test_fraction=0.5": ("0.5 + 0.5 must stay below 0.95", "Try data.val_fraction="),
    "data.n_folds=5 data.fold=5": ("got 5", "data.fold must lie between 0 and 4", "Try data.fold=0"),
    "optimizer=sgd optimizer.momentum=0": ("needs momentum", "momentum=0", "Try optimizer.nesterov=false"),
    "scheduler=wsd scheduler.warmup_fraction=0.5 scheduler.decay_fraction=0.6": (
        "scheduler.warmup_fraction=0.5 and scheduler.decay_fraction=0.6",
        "must stay within 1",
        "Try scheduler.warmup_fraction=",
    ),
    "model.unfreeze_epoch=3": ("unfreeze_epoch=3 unfreezes nothing", "Try model.freeze_backbone=true"),
}

# What is close to a contradiction and none.
TOGETHER = [
    "monitor=val/acc mode=max",
    "monitor=train/f1 mode=max model.train_metrics=[acc,f1]",
    "+model.metrics.auroc._target_=torchmetrics.classification.MulticlassAUROC monitor=val/auroc mode=max",
    "trainer.limit_val_batches=0 monitor=train/loss callbacks.early_stopping=null scheduler=reduce_on_plateau",
    "trainer.limit_val_batches=0 callbacks.early_stopping=null trainer.enable_checkpointing=false",
    "trainer.limit_val_batches=0 trainer.fast_dev_run=true",
    "trainer.check_val_every_n_epoch=20",
    "trainer.max_epochs=-1 trainer.max_steps=5",
    "trainer.max_epochs=-1 trainer.fast_dev_run=true",
    "scheduler=wsd scheduler.warmup_fraction=0.5 scheduler.decay_fraction=0.5",
    "optimizer=sgd optimizer.momentum=0 optimizer.nesterov=false",
    "name=${hydra:runtime.choices.model}",
]

# What a comment declares, values that it allows, and values that it does not.
DECLARED = {
    "int >= 1": ([1, 64], [0, -1, 2.0, True, "1", None, [1]]),
    "0 <= float < 1": ([0, 0.0, 0.5], [1, 1.0, -0.1, float("nan"), "0.5", False]),
    "float > 0 | null": ([1e-9, None], [0, 0.0, float("inf"), "null"]),
    "bool | int >= 0": ([True, 0, 3], [-1, 0.5, None]),
    "auto | cpu": (["auto", "cpu"], ["gpu", None, True]),
    "str": (["a", 7], [None, True, ["a"]]),
    "DD:HH:MM:SS | dict": (["00:01:00:00", {"hours": 1}], ["1:00", "soon", 3]),
    "-1 | int >= 1 | str | list of int >= 0": ([-1, 1, "auto", [0, 1], []], [0, -2, [-1], ["a"]]),
    "all | list of onnx | torch_export": (["all", ["onnx", "torch_export"]], ["onnx", ["all"], ["tflite"]]),
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


@pytest.mark.parametrize("typed", {**IMPOSSIBLE, **CONTRADICTORY})
def test_impossible_and_contradictory_values_are_refused(typed):
    with pytest.raises(ConfigError) as refused:
        check("train", switch_off(shlex.split(typed)))
    for part in {**IMPOSSIBLE, **CONTRADICTORY}[typed]:
        assert part in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize("typed", TOGETHER)
def test_values_that_go_together_are_taken(typed):
    check("train", shlex.split(typed))


@pytest.mark.parametrize("allowed", DECLARED)
def test_a_comment_declares_types_ranges_words_and_elements(allowed):
    right, wrong = DECLARED[allowed]
    assert [value for value in right if not fits(value, allowed)] == []
    assert [value for value in wrong if fits(value, allowed)] == []


def leaves(node, prefix=""):
    for key, value in node.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


# Presets set what other files declare.
PAGES = [file for file in sorted(CONFIG_DIR.glob("**/*.yaml")) if file.parent.name not in (*PRESETS, "job_logging")]


@pytest.mark.parametrize("file", PAGES, ids=lambda file: file.relative_to(CONFIG_DIR).as_posix())
def test_every_number_declares_what_it_may_be_and_every_value_is_what_it_declares(file):
    declared = declarations([file])
    page = OmegaConf.to_container(OmegaConf.load(file))
    for key, value in leaves({key: page[key] for key in page if key not in ("defaults", "hydra")}):
        # What the file's package puts before a key is of no interest here.
        (declaration,) = [said for name, said in declared.items() if f".{name}".endswith(f".{key}")] or [None]
        elements = value if isinstance(value, list) else [value]
        assert declaration or not any(type(element) in (int, float) for element in elements), key
        if declaration and not any("${" in str(element) or element == "???" for element in elements):
            assert fits(value, declaration.allowed), key


def test_a_range_holds_for_the_value_in_the_file_itself():
    declared = {"data.batch_size": Declaration("int >= 1", "", "0", Path("configs/data/own.yaml"))}
    page = {"data": {"batch_size": 0}}
    with pytest.raises(ConfigError, match=r"must be int >= 1, got 0\. Change it in configs/data/own\.yaml"):
        compare(page, page, declared)


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
    assert list(single_requests(["seed=1,2", "model=mlp,cnn"], multirun=True)) == [
        ["seed=1", "model=mlp"],
        ["seed=1", "model=cnn"],
        ["seed=2", "model=mlp"],
        ["seed=2", "model=cnn"],
    ]
    first, second = single_requests(["seed=1,x"], multirun=True)
    check("train", first)
    with pytest.raises(ConfigError, match=r"seed must be .*, got x\. Try seed="):
        check("train", second)


def test_a_grid_runs_over_the_options_of_a_group():
    options = sorted(file.stem for file in (CONFIG_DIR / "optimizer").glob("*.yaml"))
    assert list(single_requests(["optimizer=glob(*)"], multirun=True)) == [[f"optimizer={name}"] for name in options]


def test_a_grid_that_cannot_be_counted_is_refused():
    with pytest.raises(ConfigError, match=r"interval\(0,1\) cannot be counted.*Try optimizer\.lr=0,1"):
        list(single_requests(["optimizer.lr=interval(0,1)"], multirun=True))


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


@pytest.fixture
def experiment(project):
    """Lay an experiment beside the shipped one that asks for something impossible."""
    file = project / "configs" / "experiment" / "impossible.yaml"
    file.write_text("# @package _global_\ndata:\n  batch_size: 0\n", encoding="utf-8")
    yield
    file.unlink()


# Each in a process of its own. The first ones show all that these rely on.
EARLY = {
    "train trainer.max_epoch=3": "trainer.max_epoch does not exist",
    "train monitor=val/auroc": "is never logged",
    "train experiment=impossible": "data.batch_size must be int >= 1, got 0",
    "train -m scheduler=wsd scheduler.warmup_fraction=0.1,0.9 scheduler.decay_fraction=0.05,0.2": "within 1",
    "eval checkpoint=CHECKPOINT data.batch_size=0": "data.batch_size must be int >= 1, got 0",
}
EARLY_TOO = {
    "train +anything=1": "anything does not exist",
    "train precision=fp8": "precision=fp8 does not exist",
    "train optimizer.lr=fast": "got fast",
    "train data.batch_size=0": "got 0",
    "train data.batch_size=???": "has no value yet",
    "train trainer.limit_val_batches=0": "leaves no validation",
}


@pytest.mark.parametrize(
    ("command", "told"),
    [*EARLY.items(), *(pytest.param(*case, marks=pytest.mark.slow) for case in EARLY_TOO.items())],
)
def test_a_wrong_request_ends_before_torch_is_loaded_and_leaves_nothing(
    command, told, door, without_torch, project, experiment, tmp_path
):
    environment, mark = without_torch
    (tmp_path / "last.ckpt").touch()
    before = files_of(project) | files_of(tmp_path)
    done = door(*command.replace("CHECKPOINT", f"'{tmp_path / 'last.ckpt'}'").split(), **environment)
    assert done.returncode == 2
    assert done.stderr.strip().startswith("Error: ")
    assert told in done.stderr
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
    done = here("train", "model=torchvision", "model.net.name=resnet99", f"hydra.run.dir={run_dir}")
    assert done.returncode == 2
    assert done.stderr.strip().startswith("Error: model.net.name=resnet99 does not exist. Allowed: alexnet, ")
    assert len(done.stderr.strip().splitlines()) == 1
    assert "Traceback" not in done.stdout
    assert "Traceback (most recent call last)" in (run_dir / "train.log").read_text(encoding="utf-8")


def test_an_unknown_argument_of_a_class_is_refused_with_those_that_exist(here):
    done = here("train", "+data.batch_sise=3")
    assert done.returncode == 2
    for part in ("batch_sise", "batch_size", "val_fraction", "split_seed"):
        assert part in done.stderr
