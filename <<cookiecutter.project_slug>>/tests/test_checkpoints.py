"""A checkpoint from a stranger cannot run code: whatever it names is refused, and nothing of it has run.

One that lacks a part, or holds something else in its place, is refused with the name of that part.
"""

import copy
import errno
import json
import os
import pickle
import re

import pytest
import torch
from hydra.utils import instantiate
from lightning.pytorch.plugins.io import TorchCheckpointIO
from omegaconf import OmegaConf

from << cookiecutter.package_name >> import run_directory
from << cookiecutter.package_name >>.building import build, check_targets
from << cookiecutter.package_name >>.checkpoints import RESUMED, AtomicCheckpointIO, read_checkpoint
from << cookiecutter.package_name >>.configuration import ConfigError, RunError

OWN_MODULE = run_directory.__name__


# Configurations that leave a file at MARK when they are built.
PAYLOADS = {
    "os.system": {"_target_": "os.system", "command": "touch MARK"},
    "posix.system": {"_target_": "posix.system", "_args_": ["touch MARK"]},
    "subprocess.run": {"_target_": "subprocess.run", "args": ["touch", "MARK"]},
    "builtins.open": {"_target_": "builtins.open", "file": "MARK", "mode": "w"},
    "builtins.exec": {"_target_": "builtins.exec", "_args_": ["open('MARK', 'w').close()"]},
    "pathlib.Path.touch": {
        "_target_": "pathlib.Path.touch",
        "_args_": [{"_target_": "pathlib.Path", "_args_": ["MARK"]}],
    },
    "logging.FileHandler": {"_target_": "logging.FileHandler", "filename": "MARK"},
    "torch.save": {"_target_": "torch.save", "obj": {}, "f": "MARK"},
    "torch.hub.load": {"_target_": "torch.hub.load", "repo_or_dir": "HUB", "model": "evil", "source": "local"},
    "hydra.utils.call": {"_target_": "hydra.utils.call", "_args_": [{"_target_": "builtins.open", "file": "MARK"}]},
    "os through a trusted module": {"_target_": f"{OWN_MODULE}.os.system", "command": "touch MARK"},
    "subprocess through a trusted module": {"_target_": f"{OWN_MODULE}.subprocess.run", "args": ["touch", "MARK"]},
    "os through torch": {"_target_": "torch.os.system", "command": "touch MARK"},
    "a function of a trusted module": {"_target_": f"{OWN_MODULE}.write_json", "path": "MARK", "content": {}},
    "a trusted class of another kind": {"_target_": "lightning.pytorch.loggers.CSVLogger", "save_dir": "MARK"},
    "partial": {"_target_": "torch.save", "_partial_": True, "obj": {}, "f": "MARK"},
    "no name": {"_target_": ["os", "system"]},
}


@pytest.fixture
def mark(tmp_path):
    """Give the path of a file that exists only once a payload has run."""
    return tmp_path / "it-ran"


@pytest.fixture
def payload(mark):
    """Aim a payload at the mark: `payload("torch.save")`."""
    hub = mark.parent / "hub"
    hub.mkdir()
    (hub / "hubconf.py").write_text(f"def evil():\n    open({str(mark)!r}, 'w').close()\n", encoding="utf-8")

    def aim(name):
        return json.loads(json.dumps(PAYLOADS[name]).replace("MARK", str(mark)).replace("HUB", str(hub)))

    return aim


def wrappings(payload):
    """Give the places of a configuration in which a payload may hide."""
    return {
        "network": {"model": {"net": payload}},
        "argument of a trusted network": {"model": {"net": {"_target_": "torch.nn.Sequential", "_args_": [payload]}}},
        "deep": {"model": {"net": {"_target_": "torch.nn.Sequential", "a": {"b": {"c": [[{"d": payload}]]}}}}},
        "partial": {"optimizer": {"_target_": "torch.optim.AdamW", "_partial_": True, "lr": payload}},
        "tuple": {"model": {"net": {"_target_": "torch.nn.Sequential", "_args_": (payload,)}}},
        "callback": {"callbacks": {"extra": payload}},
        "data": {"data": {"batch_size": payload}},
    }


def merged(config, change):
    for key, value in change.items():
        if isinstance(value, dict) and isinstance(config.get(key), dict) and "_target_" not in value:
            merged(config[key], value)
        else:
            config[key] = value
    return config


@pytest.fixture
def crafted(trained_run, tmp_path):
    """Write a checkpoint of the trained run with parts of it changed, and give its path."""
    content = torch.load(trained_run.path / "checkpoints" / "best.ckpt", weights_only=True)

    def write(**changes):
        path = tmp_path / "crafted.ckpt"
        torch.save(merged(copy.deepcopy(content), changes), path)
        return path

    return write


@pytest.fixture
def changed(trained_run, tmp_path):
    """Write the trained run's last checkpoint with one part changed, without the run around it; give its path."""

    def write(part, change):
        content = torch.load(trained_run.path / "checkpoints" / "last.ckpt", weights_only=True)
        *path, last = part
        holder = content
        for key in path:
            holder = holder[key]
        if change is None:
            del holder[last]
        else:
            holder[last] = change
        torch.save(content, tmp_path / "changed.ckpt")
        return tmp_path / "changed.ckpt"

    return write


def test_an_unchanged_checkpoint_is_read(crafted):
    assert read_checkpoint(crafted()).build_model()(torch.zeros(1, 1, 8, 8, dtype=torch.uint8)).shape == (1, 10)


@pytest.mark.parametrize("name", ["builtins.open", "torch.save", "logging.FileHandler", "torch.hub.load"])
def test_the_payloads_would_leave_their_mark(name, payload, mark):
    # Else the tests below could not fail.
    instantiate(payload(name))
    assert mark.exists()


@pytest.mark.parametrize("name", PAYLOADS)
def test_a_checkpoint_that_names_foreign_code_is_refused_unrun(name, crafted, payload, mark):
    path = crafted(config={"model": {"net": payload(name)}})
    with pytest.raises(ConfigError, match="Nothing of it was run"):
        read_checkpoint(path).build_model()
    assert not mark.exists()


@pytest.mark.parametrize("place", sorted(wrappings({})))
@pytest.mark.parametrize("name", ["torch.save", "os through a trusted module"])
def test_foreign_code_is_found_wherever_it_hides(name, place, crafted, payload, mark):
    path = crafted(config=wrappings(payload(name))[place])
    with pytest.raises(ConfigError, match="Nothing of it was run"):
        read_checkpoint(path).build_model()
    assert not mark.exists()


@pytest.mark.parametrize("resolver", ["oc.create", "oc.decode"])
def test_foreign_code_cannot_hide_in_text_that_becomes_configuration(resolver, crafted, mark):
    inner = f"{{_target_: torch.save, obj: [], f: '{mark}'}}"
    written = f"{{_target_: torch.nn.Sequential, _args_: [{inner}]}}"
    text = f"${{{resolver}:{written}}}" if resolver == "oc.create" else f'${{{resolver}:"{written}"}}'
    with pytest.raises(ConfigError, match="Nothing of it was run"):
        read_checkpoint(crafted(config={"model": {"net": text}})).build_model()
    assert not mark.exists()


def test_a_name_cannot_be_put_together_from_the_environment(crafted, mark, monkeypatch):
    monkeypatch.setenv("HARMLESS", "torch.save")
    net = {"_target_": "${oc.env:HARMLESS}", "obj": {}, "f": str(mark)}
    with pytest.raises(ConfigError, match="Nothing of it was run"):
        read_checkpoint(crafted(config={"model": {"net": net}})).build_model()
    assert not mark.exists()


@pytest.mark.parametrize("name", ["eval", "export", "predict"])
def test_every_door_refuses_a_crafted_checkpoint_with_exit_code_2(name, here, crafted, payload, mark, tmp_path):
    path = crafted(config={"model": {"net": payload("torch.save")}})
    (tmp_path / "picture.png").write_bytes(b"")
    arguments = [path, tmp_path / "picture.png"] if name == "predict" else [f"checkpoint={path}"]
    done = here(name, *arguments)
    assert done.returncode == 2
    assert "The checkpoint names torch.save, which is not a network, loss, metric" in done.stderr
    assert "TRUSTED_PACKAGES" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert not mark.exists()


class Pickled:
    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.system, (f"touch '{self.mark}'",)


@pytest.mark.parametrize("part", ["state_dict", "config", "data_spec", "extra"])
def test_a_pickled_payload_is_refused_unrun(part, crafted, here, mark):
    path = crafted(**{part: {"extra": Pickled(mark)}})
    done = here("eval", f"checkpoint={path}")
    assert done.returncode == 2
    assert "it holds more than plain types. Nothing of it was run" in done.stderr
    assert not mark.exists()


def test_a_bare_pickle_is_refused_unrun(here, mark, tmp_path):
    (tmp_path / "bare.ckpt").write_bytes(pickle.dumps(Pickled(mark)))
    assert here("eval", "checkpoint=bare.ckpt").returncode == 2
    assert not mark.exists()


def test_half_a_checkpoint_is_refused(trained_run, here, tmp_path):
    whole = (trained_run.path / "checkpoints" / "best.ckpt").read_bytes()
    for size in (0, 1000, len(whole) // 2, len(whole) - 1):
        (tmp_path / "half.ckpt").write_bytes(whole[:size])
        done = here("eval", f"checkpoint={tmp_path / 'half.ckpt'}")
        assert done.returncode == 2
        assert "half.ckpt is not a checkpoint that can be trusted" in done.stderr


def test_weights_that_do_not_fit_the_code_are_told(crafted, here):
    done = here("eval", f"checkpoint={crafted(config={'model': {'net': {'widths': [8, 8]}}})}")
    assert done.returncode == 2
    assert "does not fit this code" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_checkpoint_is_in_its_place_only_once_it_is_whole(tmp_path, monkeypatch):
    path = tmp_path / "last.ckpt"
    AtomicCheckpointIO().save_checkpoint({"weights": torch.ones(3)}, path)

    def half(self, checkpoint, path, storage_options=None):
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(TorchCheckpointIO, "save_checkpoint", half)
    with pytest.raises(RunError, match=r"last\.ckpt could not be written: No space left on device") as told:
        AtomicCheckpointIO().save_checkpoint({"weights": torch.zeros(3)}, path)
    assert "The checkpoint before it is whole." in str(told.value)
    assert torch.load(path, weights_only=True)["weights"].tolist() == [1, 1, 1]
    assert [file.name for file in tmp_path.iterdir()] == ["last.ckpt"]


def test_a_first_checkpoint_that_cannot_be_written_leaves_none_and_says_so(tmp_path, monkeypatch):
    def full(self, checkpoint, path, storage_options=None):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(TorchCheckpointIO, "save_checkpoint", full)
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(RunError, match=r"There is no checkpoint yet\. Make room") as told:
        AtomicCheckpointIO().save_checkpoint({}, tmp_path / "checkpoints" / "last.ckpt")
    assert f"hydra.run.dir={tmp_path} resume=auto" in str(told.value)


def test_a_checkpoint_of_another_project_is_refused(here, tmp_path):
    torch.save({"state_dict": {"weight": torch.zeros(1)}}, tmp_path / "other.ckpt")
    done = here("eval", "checkpoint=other.ckpt")
    assert done.returncode == 2
    assert "other.ckpt lacks the run's configuration" in done.stderr


@pytest.mark.parametrize("part", ["config", "data_spec"])
def test_a_checkpoint_with_parts_of_another_shape_is_refused(part, trained_run, here, tmp_path):
    content = torch.load(trained_run.path / "checkpoints" / "best.ckpt", weights_only=True)
    torch.save({**content, part: ["neither", "dict"]}, tmp_path / "odd.ckpt")
    done = here("eval", "checkpoint=odd.ckpt")
    assert done.returncode == 2
    assert "odd.ckpt" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["torch.nn.NoSuchLayer", f"{OWN_MODULE}.NoSuchNetwork"])
def test_a_checkpoint_that_names_what_is_not_there_says_so(name, crafted, here):
    done = here("eval", f"checkpoint={crafted(config={'model': {'net': {'_target_': name}}})}")
    assert done.returncode == 2
    assert name in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "target",
    [
        "torch.nn.Linear",
        "torch.nn.CrossEntropyLoss",
        "torchmetrics.classification.MulticlassAccuracy",
        "torch.optim.AdamW",
        "torch.optim.lr_scheduler.OneCycleLR",
        "lightning.pytorch.callbacks.EarlyStopping",
        "torchvision.models.resnet18",
    ],
)
def test_the_kinds_that_a_checkpoint_may_name_are_trusted(target):
    check_targets({"deep": [{"_target_": target}]})


def test_a_network_of_torchvision_can_be_built():
    config = {"_target_": "torchvision.models.resnet18", "num_classes": 3}
    check_targets(config)
    assert build(OmegaConf.create(config)).fc.out_features == 3


# Parts that are missing or of another type.


def at(path, value):
    """Give nested dicts that hold a value at `config.model.net`."""
    for key in reversed(path.split(".")):
        value = {key: value}
    return value


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        *((f"config.{part}", None, "is missing") for part in ("data", "optimizer", "scheduler", "trainer", "model")),
        *((f"config.model.{part}", None, "is missing") for part in ("net", "loss", "train_metrics")),
        ("config.data", ["DigitsDataModule"], "is list, not dict"),
        ("config.model", "cnn", "is str, not dict"),
        ("config.model.net", "cnn", "is str, not dict"),
        ("config.model.metrics.acc", "MulticlassAccuracy", "is str, not dict"),
        ("config.seed", "abc", "is str, not int"),
        ("config.seed", True, "is bool, not int"),
        ("config.trainer.num_nodes", "two", "is str, not int"),
        ("data_spec.channels", "one", "is str, not int"),
    ],
)
def test_a_part_that_is_missing_or_of_another_type_is_named(path, value, told, crafted):
    with pytest.raises(ConfigError, match=rf"is not as a run writes it: {re.escape(path)} {told}\."):
        read_checkpoint(crafted(**at(path, value)))


@pytest.mark.parametrize("name", ["eval", "export", "predict"])
@pytest.mark.parametrize("part", ["config.data", "config.model.net", "state_dict"])
def test_every_door_ends_with_one_message_about_a_checkpoint_in_disorder(name, part, here, crafted, tmp_path):
    path = crafted(**(at(part, None) if part != "state_dict" else {"state_dict": {0: torch.zeros(1)}}))
    (tmp_path / "picture.png").write_bytes(b"")
    done = here(name, *([path, tmp_path / "picture.png"] if name == "predict" else [f"checkpoint={path}"]))
    assert done.returncode == 2
    assert f"crafted.ckpt is not as a run writes it: {part} " in done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def test_what_is_to_be_built_needs_a_target(changed):
    with pytest.raises(ConfigError, match=r"is not as a run writes it: config\.model\.net\._target_ is missing\."):
        read_checkpoint(changed(["config", "model", "net", "_target_"], None))


@pytest.mark.parametrize("metrics", [{"f1": None}, None])
def test_metrics_that_were_switched_off_are_no_part_that_is_missing(metrics, crafted):
    read_checkpoint(crafted(config={"model": {"metrics": metrics}})).build_model()


@pytest.mark.parametrize("found", [1.0, True, "1", 2])
def test_only_the_number_of_this_format_is_read(found, crafted):
    with pytest.raises(ConfigError, match=rf"has format {found!r}; this code reads format 1\."):
        read_checkpoint(crafted(format=found))


# What a run goes on from.


def test_a_whole_checkpoint_can_be_resumed(trained_run):
    for name in ("best", "last"):
        read_checkpoint(trained_run.path / "checkpoints" / f"{name}.ckpt", resume=True)


@pytest.mark.parametrize("part", [*RESUMED, "DigitsDataModule"])
def test_a_run_goes_on_from_all_parts_of_a_checkpoint_or_not_at_all(part, changed):
    path = changed([part], None)
    with pytest.raises(ConfigError, match=rf"cannot go on from .*changed\.ckpt: {part} is missing\.") as told:
        read_checkpoint(path, resume=True)
    assert "try model.init_from=" in str(told.value)
    # Its weights are there.
    assert read_checkpoint(path).build_model()


@pytest.mark.parametrize(
    ("part", "change", "told"),
    [
        (["callbacks"], [], "callbacks is list, not dict"),
        (["callbacks", "EarlyStopping"], "x", "callbacks.EarlyStopping is str, not dict"),
        (["loops"], [], "loops is list, not dict"),
        (["loops", "fit_loop", "epoch_loop.scheduler_progress"], "x", "scheduler_progress is str, not dict"),
        (["loops", "fit_loop", "epoch_loop.state_dict"], {}, "state_dict._batches_that_stepped is missing"),
        (["loops", "fit_loop"], {}, "loops.fit_loop.epoch_progress is missing"),
        (["loops", "fit_loop", "epoch_progress", "current"], {}, "epoch_progress.current.ready is missing"),
        (["optimizer_states"], {}, "optimizer_states is dict, not list"),
        (["optimizer_states"], [], "optimizer_states[0] is missing"),
        (["optimizer_states", 0], "x", "optimizer_states[0] is str, not dict"),
        (["optimizer_states", 0, "state", 0], 3, "optimizer_states[0].state.0 is int, not dict"),
        (["lr_schedulers"], [], "lr_schedulers[0] is missing"),
        (["lr_schedulers", 0], 3, "lr_schedulers[0] is int, not dict"),
        (["train_metrics"], "x", "train_metrics is str, not list"),
        (["train_metrics", 0], {}, "train_metrics[0].sums is missing"),
        (["DigitsDataModule"], 3, "DigitsDataModule is int, not dict"),
        (["DigitsDataModule", "epoch"], "x", "DigitsDataModule.epoch is str, not int"),
        (["global_step"], "x", "global_step is str, not int"),
        (["epoch"], 1.0, "epoch is float, not int"),
        (["total_steps"], True, "total_steps is bool, not int"),
    ],
)
def test_a_part_of_another_type_is_not_gone_on_from(part, change, told, changed):
    with pytest.raises(ConfigError, match=re.escape(told)):
        read_checkpoint(changed(part, change), resume=True)


def test_training_refuses_to_go_on_from_part_of_a_checkpoint_and_takes_its_weights(changed, here, tmp_path):
    path = changed(["lr_schedulers"], None)
    done = here("train", "trainer.max_epochs=4", f"resume={path}", f"hydra.run.dir={tmp_path / 'run'}")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "changed.ckpt: lr_schedulers is missing." in done.stderr
    assert "try model.init_from=changed.ckpt." in done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    quick = ("model.init_from=changed.ckpt", "trainer.fast_dev_run=true", "export=null", "logger=null")
    assert here("train", *quick, f"hydra.run.dir={tmp_path / 'new'}").returncode == 0
