"""Every shipped configuration file composes, and what it names exists."""

import inspect

import pytest
import yaml
from hydra.utils import get_object
from lightning import Trainer
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from omegaconf import OmegaConf

from << cookiecutter.package_name >>.building import SWITCHES, build, build_model
from << cookiecutter.package_name >>.configuration import CONFIG_DIR
from << cookiecutter.package_name >>.data.spec import DataSpec
from << cookiecutter.package_name >>.machine import fit_to_machine
from << cookiecutter.package_name >>.request import PRESETS, check
from << cookiecutter.package_name >>.training import build_callbacks, build_loggers, build_trainer

# What has no default.
NEEDED = {"data=image_folder": ["data.root=photos"], "data=csv": ["data.index=photos.csv"]}
OPTIONS = sorted(f"{file.parent.name}={file.stem}" for file in CONFIG_DIR.glob("*/*.yaml"))


def targets(node):
    """Give every mapping that names a class or function, however deep."""
    if isinstance(node, dict):
        if "_target_" in node:
            yield node
        for value in node.values():
            yield from targets(value)


NAMED = [
    pytest.param(node, id=f"{file.parent.name}/{file.stem}: {node['_target_']}")
    for file in sorted(CONFIG_DIR.rglob("*.yaml"))
    for node in targets(yaml.safe_load(file.read_text(encoding="utf-8")))
]


def not_composed(option, cfg):
    """Give the keys of an option's file that a configuration lacks."""
    cfg = OmegaConf.to_container(cfg, resolve=True)
    group, _, name = option.partition("=")
    shipped = yaml.safe_load((CONFIG_DIR / group / f"{name}.yaml").read_text(encoding="utf-8"))
    # Options whose header is `# @package trainer` write there; the others below their group.
    written = {**cfg, **cfg["trainer"], **(cfg.get(group) or {})}
    return set(shipped) - {"defaults"} - set(written)


# What needs no CUDA; test_loggers.py starts wandb, which takes seconds, in a run.
BUILT = [
    pytest.param(option, marks=pytest.mark.slow) if option == "logger=wandb" else option
    for option in OPTIONS
    if option != "strategy=fsdp"
]


@pytest.mark.parametrize("option", BUILT)
def test_every_option_composes_and_what_it_names_can_be_built(option, compose, tmp_path):
    # One wandb run at a time.
    others = [] if option.startswith("logger=") else ["logger=csv"]
    cfg = compose(option, *others, *NEEDED.get(option, []))
    assert not_composed(option, cfg) == set()
    settled = fit_to_machine(cfg)
    assert build(settled.data) is not None
    spec = DataSpec(class_names=("a", "b"), channels=3, image_size=32, mean=(0.5,) * 3, std=(0.5,) * 3)
    assert build_model(settled, spec).net is not None
    callbacks = build_callbacks(settled)
    assert len(callbacks) == sum(entry is not None for entry in settled.callbacks.values())
    loggers = build_loggers(settled, tmp_path, {})
    assert len(loggers) == 1 + len(settled.logger)
    for logger in loggers:
        getattr(logger, "close", lambda: None)()
    assert build_trainer(settled, tmp_path, callbacks).precision == settled.trainer.precision


def test_sharing_a_model_out_is_an_option_where_there_is_cuda(compose):
    cfg = compose("strategy=fsdp")
    assert not_composed("strategy=fsdp", cfg) == set()
    assert (cfg.trainer.strategy, cfg.trainer.devices) == ("fsdp", "auto")


@pytest.mark.parametrize("option", [option for option in OPTIONS if option.startswith(PRESETS)])
def test_every_preset_is_a_right_request(option):
    check("train", [option])


def test_every_group_has_the_options_that_the_contract_names():
    contract = {
        "data=digits",
        "precision=16-mixed",
        "precision=16-true",
        "precision=32-true",
        "precision=64-true",
        "precision=bf16-mixed",
        "precision=bf16-true",
        "strategy=ddp",
        "strategy=single",
        "trainer=ddp",
        "trainer=default",
    }
    assert contract <= set(OPTIONS)


@pytest.mark.parametrize("node", NAMED)
def test_every_target_exists_and_takes_its_arguments(node):
    # These shape what is built, or what is given to it.
    read_elsewhere = ("backbone_lr_scale", "train_metrics", *SWITCHES)
    arguments = {key: value for key, value in node.items() if not key.startswith("_") and key not in read_elsewhere}
    bound = inspect.signature(get_object(node["_target_"])).bind_partial(**arguments)
    assert set(arguments) <= set(bound.arguments) | set(bound.kwargs)


def test_the_trainer_page_holds_every_argument_of_lightnings_trainer(compose):
    assert {*compose().trainer, "callbacks", "logger"} == set(inspect.signature(Trainer).parameters)


def test_ddp_and_mixed_precision_reach_the_trainer_on_any_machine(compose, tmp_path):
    cfg = compose("trainer=ddp", "precision=16-mixed")
    assert (cfg.trainer.strategy, cfg.trainer.devices, cfg.trainer.precision) == ("ddp", "auto", "16-mixed")
    settled = fit_to_machine(compose("trainer=ddp", "precision=16-mixed", "trainer.accelerator=cpu"))
    trainer = build_trainer(settled, tmp_path, callbacks=[])
    assert isinstance(trainer.strategy, DDPStrategy)
    # A CPU has no fp16 autocast.
    assert trainer.precision == "bf16-mixed"
    assert trainer.num_devices == 1


def test_the_command_line_wins_over_a_preset(compose, tmp_path):
    cfg = compose("trainer=ddp", "strategy=single")
    assert (cfg.trainer.strategy, cfg.trainer.devices) == ("auto", 1)
    trainer = build_trainer(fit_to_machine(cfg), tmp_path, callbacks=[])
    assert isinstance(trainer.strategy, SingleDeviceStrategy)


def test_the_monitored_metric_is_written_once(compose):
    cfg = compose("monitor=val/acc", "mode=max")
    for entry in ("best_checkpoint", "early_stopping"):
        assert (cfg.callbacks[entry].monitor, cfg.callbacks[entry].mode) == ("val/acc", "max")


def test_no_file_is_outside_the_groups_that_the_page_lists(compose):
    page = yaml.safe_load((CONFIG_DIR / "train.yaml").read_text(encoding="utf-8"))
    listed = {key.split()[-1] for entry in page["defaults"] if isinstance(entry, dict) for key in entry}
    assert {option.partition("=")[0] for option in OPTIONS} <= listed
