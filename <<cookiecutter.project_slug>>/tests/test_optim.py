"""Schedules follow their formulas over the run's real number of optimizer steps."""

import json
import math
import os
from unittest.mock import patch

import pytest
import torch
from lightning import Callback, Trainer

from << cookiecutter.package_name >>.building import build_model
from << cookiecutter.package_name >>.configuration import CONFIG_DIR, ConfigError
from << cookiecutter.package_name >>.data.digits import DigitsDataModule
from << cookiecutter.package_name >>.data.spec import DataSpec
from << cookiecutter.package_name >>.machine import fit_to_machine
from << cookiecutter.package_name >>.optim import parameter_groups as grouping
from << cookiecutter.package_name >>.optim import schedules


# The share of the optimizer's rate at which step k of n runs, in epoch e, as each file of configs/scheduler sets it.
def after_warmup(share):
    """Rise over a twentieth of the run, then go on with `share(step, steps)` of the rest."""

    def formula(step, steps, epoch):
        warmup = round(0.05 * steps)
        return (step + 1) / (warmup + 1) if step < warmup else share(step - warmup, steps - warmup)

    return formula


def half_cosine(step, steps, final=0.01):
    return final + (1 - final) * (1 + math.cos(math.pi * step / steps)) / 2


def one_cycle(step, steps, epoch):
    # Torch rises from 1/25 along half a cosine up to step 0.3 n - 1, then falls to 1/250,000 of the rate.
    top, low, end = 0.3 * steps - 1, 1 / 25, 1 / 25e4
    if step <= top:
        return low + (1 - low) * (1 - math.cos(math.pi * step / top)) / 2
    return end + (1 - end) * (1 + math.cos(math.pi * (step - top) / (steps - 1 - top))) / 2


def wsd(step, steps, epoch):
    warmup, decay = round(0.05 * steps), round(0.2 * steps)
    return min((step + 1) / (warmup + 1), 1.0, (steps - step) / decay)


FORMULAS = {
    "constant": lambda step, steps, epoch: 1.0,
    "cosine": lambda step, steps, epoch: half_cosine(step, steps),
    "cosine_restarts": after_warmup(lambda step, steps: half_cosine(step % -(-steps // 3), -(-steps // 3))),
    "exponential": lambda step, steps, epoch: 0.9**epoch,
    "multistep": lambda step, steps, epoch: 0.1 ** ((epoch >= 10) + (epoch >= 15)),
    "one_cycle": one_cycle,
    "polynomial": after_warmup(lambda step, steps: 1 - step / steps),
    "reduce_on_plateau": lambda step, steps, epoch: 1.0,
    "step": lambda step, steps, epoch: 0.1 ** (epoch // 10),
    "warmup_cosine": after_warmup(half_cosine),
    "wsd": wsd,
}


def warmup_then_cosine(step, steps, warmup, final):
    """Give the share of the optimizer's rate at which a step runs."""
    if step < warmup:
        return (step + 1) / (warmup + 1)
    return final + (1 - final) * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup))) / 2


def rates(schedule, steps, lr=0.5):
    """Give the rate at which each step runs."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)
    scheduler = schedule(optimizer)["scheduler"]
    used = []
    for _ in range(steps):
        used.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return used


@pytest.mark.parametrize(("steps", "fraction", "warmup"), [(100, 0.05, 5), (40, 0.25, 10), (7, 0.5, 4), (20, 0.0, 0)])
@pytest.mark.parametrize("final", [0.0, 0.01])
def test_warmup_cosine_follows_its_formula_at_every_step(steps, fraction, warmup, final):
    used = rates(lambda optimizer: schedules.cosine(optimizer, steps, fraction, final), steps)
    assert used == pytest.approx([0.5 * warmup_then_cosine(step, steps, warmup, final) for step in range(steps)])


def test_without_warmup_the_first_step_runs_at_the_full_rate():
    assert rates(lambda optimizer: schedules.cosine(optimizer, 20, 0.0), 20)[0] == 0.5


def test_a_run_of_one_step_has_a_rate():
    assert rates(lambda optimizer: schedules.cosine(optimizer, 1, 0.05), 1) == [0.5]


def test_constant_keeps_the_rate():
    assert rates(lambda optimizer: schedules.constant(optimizer, 20), 20) == [0.5] * 20


def test_one_cycle_takes_a_whole_number_for_its_share():
    falling = rates(lambda optimizer: schedules.one_cycle(optimizer, 20, 0), 20)
    assert falling == sorted(falling, reverse=True)


@pytest.mark.parametrize("fraction", [-0.1, 1.0])
def test_an_impossible_warmup_is_refused(fraction):
    message = rf"scheduler\.warmup_fraction must be at least 0 and below 1, got {fraction}\. Try"
    with pytest.raises(ConfigError, match=message):
        rates(lambda optimizer: schedules.cosine(optimizer, 10, fraction), 10)


class UsedRates(Callback):
    """Notes the rate of each optimizer step that a run really makes; several processes note theirs in a file each."""

    def __init__(self, folder=None):
        self.rates = []
        self.folder = folder

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        self.rates.append(optimizer.param_groups[0]["lr"])

    def on_fit_end(self, trainer, pl_module):
        if self.folder:
            (self.folder / f"{trainer.global_rank}.json").write_text(json.dumps(self.rates), encoding="utf-8")


def fitted(cfg, validate=False, folder=None, **settings):
    datamodule = DigitsDataModule(batch_size=64, val_fraction=0.15, test_fraction=0.2)
    datamodule.setup()
    used = UsedRates(folder)
    trainer = Trainer(
        accelerator="cpu",
        limit_val_batches=1.0 if validate else 0,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        callbacks=[used],
        **settings,
    )
    trainer.fit(build_model(fit_to_machine(cfg), datamodule.data_spec), datamodule=datamodule)
    return used.rates


def test_a_run_with_accumulation_follows_the_schedule_over_its_real_steps(compose):
    cfg = compose("model=mlp", "optimizer.lr=0.1", "scheduler.warmup_fraction=0.25", "scheduler.final_lr_fraction=0.01")
    used = fitted(cfg, max_epochs=2, limit_train_batches=5, accumulate_grad_batches=3)
    # Batches 3 and 5 of each epoch end in a step.
    assert used == pytest.approx([0.1 * warmup_then_cosine(step, 4, 1, 0.01) for step in range(4)])


def test_a_run_that_ends_by_steps_follows_the_schedule_over_them(compose):
    cfg = compose("model=mlp", "optimizer.lr=0.1", "scheduler.warmup_fraction=0.0", "scheduler.final_lr_fraction=0.01")
    used = fitted(cfg, max_steps=6, max_epochs=-1)
    assert used == pytest.approx([0.1 * warmup_then_cosine(step, 6, 0, 0.01) for step in range(6)])


def test_a_run_without_an_end_is_refused(compose):
    with pytest.raises(ConfigError, match=r"Set trainer\.max_epochs or trainer\.max_steps\. Try trainer\.max_epochs="):
        fitted(compose("model=mlp"), max_epochs=-1)


def options(group):
    return sorted(file.stem for file in (CONFIG_DIR / group).glob("*.yaml"))


def test_every_schedule_has_a_formula():
    assert sorted(FORMULAS) == options("scheduler")


@pytest.mark.parametrize(
    ("epochs", "batches", "accumulated"), [pytest.param(2, 5, 3, marks=pytest.mark.slow), (20, 2, 1)]
)
@pytest.mark.parametrize("name", FORMULAS)
def test_each_schedule_follows_its_formula_over_the_real_steps(name, epochs, batches, accumulated, compose):
    cfg = compose("model=linear", f"scheduler={name}", "optimizer=sgd", "optimizer.lr=0.1")
    validate = name == "reduce_on_plateau"
    settings = {"limit_train_batches": batches, "accumulate_grad_batches": accumulated}
    used = fitted(cfg, validate, max_epochs=epochs, **settings)
    per_epoch = -(-batches // accumulated)
    steps = epochs * per_epoch
    expected = [0.1 * FORMULAS[name](step, steps, step // per_epoch) for step in range(steps)]
    if name == "reduce_on_plateau":
        # This loss falls all the time.
        assert used == expected
    assert used == pytest.approx(expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMULAS)
def test_each_schedule_follows_its_formula_on_two_processes(name, compose, tmp_path):
    cfg = compose("model=linear", f"scheduler={name}", "optimizer=sgd", "optimizer.lr=0.1")
    settings = {"limit_train_batches": 5, "accumulate_grad_batches": 3, "max_epochs": 2}
    # Forked, not started anew: eleven schedules take seconds. Lightning leaves ranks and ports in the environment.
    with patch.dict(os.environ):
        fitted(cfg, name == "reduce_on_plateau", tmp_path, strategy="ddp_fork", devices=2, **settings)
    for rank in (0, 1):
        used = json.loads((tmp_path / f"{rank}.json").read_text(encoding="utf-8"))
        # Batches 3 and 5 of each epoch end in a step.
        assert used == pytest.approx([0.1 * FORMULAS[name](step, 4, step // 2) for step in range(4)])


def test_a_plateau_lowers_the_rate_after_its_patience_in_validation_runs(compose):
    # A rate of almost nothing improves nothing: the first validation is the best.
    plateau = ("scheduler=reduce_on_plateau", "scheduler.patience=1", "trainer.check_val_every_n_epoch=2")
    cfg = compose("model=linear", "optimizer=sgd", "optimizer.lr=1e-12", *plateau)
    used = fitted(cfg, validate=True, max_epochs=8, limit_train_batches=1, check_val_every_n_epoch=2)
    # Validation runs after epochs 1, 3 and 5: the second without improvement is more than the patience of one.
    assert used == pytest.approx([1e-12] * 6 + [1e-13] * 2, rel=1e-6)


# One schedule that counts steps, and the one that waits for a metric.
SCHEDULES = [
    name if name in ("cosine_restarts", "reduce_on_plateau") else pytest.param(name, marks=pytest.mark.slow)
    for name in options("scheduler")
]


@pytest.mark.parametrize("scheduler", SCHEDULES)
@pytest.mark.parametrize("optimizer", options("optimizer"))
def test_every_optimizer_trains_with_every_schedule(optimizer, scheduler, compose):
    cfg = compose("model=linear", f"optimizer={optimizer}", f"scheduler={scheduler}")
    assert len(fitted(cfg, validate=True, max_epochs=1, limit_train_batches=1)) == 1


@pytest.fixture
def cnn(compose):
    spec = DataSpec(class_names=("a", "b"), channels=1, image_size=8, mean=(0.5,), std=(0.5,))
    return build_model(compose("model=cnn", "model.net.widths=[4]"), spec)


def test_biases_and_norms_do_not_decay_and_a_backbone_learns_at_its_own_rate(cnn):
    groups = {group["name"]: group for group in grouping.parameter_groups(cnn.net, 0.1, 0.5, backbone_lr_scale=0.1)}
    names = {id(parameter): name for name, parameter in cnn.net.named_parameters()}
    found = {name: {names[id(parameter)] for parameter in group["params"]} for name, group in groups.items()}
    assert found == {
        "head": {"head.1.weight"},
        "head, no decay": {"head.1.bias"},
        "backbone": {"features.0.0.weight", "features.0.3.weight"},
        "backbone, no decay": {f"features.0.{layer}.{part}" for layer in (1, 4) for part in ("weight", "bias")},
    }
    assert {name: group["lr"] for name, group in groups.items()} == pytest.approx(
        {"head": 0.1, "head, no decay": 0.1, "backbone": 0.01, "backbone, no decay": 0.01}
    )
    assert [group["weight_decay"] for group in groups.values()] == [0.5, 0.0, 0.5, 0.0]
    assert "backbone, no decay" in grouping.table(list(groups.values()))


def test_a_frozen_parameter_is_in_no_group(cnn):
    cnn.net.features.requires_grad_(False)
    names = {group["name"] for group in grouping.parameter_groups(cnn.net, 0.1, 0.5, 1.0)}
    assert names == {"network", "network, no decay"}
    cnn.net.requires_grad_(False)
    with pytest.raises(ConfigError, match="nothing to train"):
        grouping.parameter_groups(cnn.net, 0.1, 0.5, 1.0)


def test_a_parameter_in_no_group_or_in_two_is_an_error(cnn):
    groups = grouping.parameter_groups(cnn.net, 0.1, 0.5, 1.0)
    grouping.check_groups(cnn.net, groups)
    with pytest.raises(ValueError, match=r"head\.1\.weight is in 2 groups"):
        grouping.check_groups(cnn.net, [*groups, {"params": [cnn.net.head[1].weight]}])
    with pytest.raises(ValueError, match="is in 0 groups"):
        grouping.check_groups(cnn.net, groups[:1])


def test_an_impossible_scale_is_refused(cnn):
    with pytest.raises(ConfigError, match=r"optimizer\.backbone_lr_scale must be above 0, got 0\. Try"):
        grouping.parameter_groups(cnn.net, 0.1, 0.5, 0)


@pytest.mark.parametrize(
    ("overrides", "fused"),
    [
        (["precision=32-true"], True),
        (["precision=bf16-mixed"], False),
        (["precision=bf16-mixed", "trainer.gradient_clip_val=null"], True),
        (["precision=bf16-true"], False),
        (["optimizer.fused=false"], False),
    ],
)
def test_fused_is_settled_by_precision_and_clipping(overrides, fused, compose):
    assert fit_to_machine(compose(*overrides, "trainer.accelerator=cpu")).optimizer.fused is fused
