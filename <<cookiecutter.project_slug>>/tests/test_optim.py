"""Schedules follow their formulas over the run's real number of optimizer steps."""

import math

import pytest
import torch
from lightning import Callback, Trainer

from << cookiecutter.package_name >>.building import build_model
from << cookiecutter.package_name >>.configuration import ConfigError
from << cookiecutter.package_name >>.data.digits import DigitsDataModule
from << cookiecutter.package_name >>.optim.schedules import constant, warmup_cosine


def warmup_then_cosine(step, steps, warmup, final):
    """Give the share of the optimizer's rate at which a step runs."""
    if step < warmup:
        return (step + 1) / (warmup + 1)
    return final + (1 - final) * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup))) / 2


def rates(schedule, steps, lr=0.5):
    """Give the rate at which each step runs."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)
    scheduler = schedule(optimizer)
    used = []
    for _ in range(steps):
        used.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return used


@pytest.mark.parametrize(("steps", "fraction", "warmup"), [(100, 0.05, 5), (40, 0.25, 10), (7, 0.5, 4), (20, 0.0, 0)])
@pytest.mark.parametrize("final", [0.0, 0.01])
def test_warmup_cosine_follows_its_formula_at_every_step(steps, fraction, warmup, final):
    used = rates(lambda optimizer: warmup_cosine(optimizer, steps, fraction, final), steps)
    assert used == pytest.approx([0.5 * warmup_then_cosine(step, steps, warmup, final) for step in range(steps)])


def test_without_warmup_the_first_step_runs_at_the_full_rate():
    assert rates(lambda optimizer: warmup_cosine(optimizer, 20, 0.0), 20)[0] == 0.5


def test_a_run_of_one_step_has_a_rate():
    assert rates(lambda optimizer: warmup_cosine(optimizer, 1, 0.05), 1) == [0.5]


def test_constant_keeps_the_rate():
    assert rates(lambda optimizer: constant(optimizer, 20), 20) == [0.5] * 20


@pytest.mark.parametrize("fraction", [-0.1, 1.0])
def test_an_impossible_warmup_is_refused(fraction):
    message = rf"scheduler\.warmup_fraction must be at least 0 and below 1, got {fraction}\. Try"
    with pytest.raises(ConfigError, match=message):
        rates(lambda optimizer: warmup_cosine(optimizer, 10, fraction), 10)


class UsedRates(Callback):
    """Notes the rate of each optimizer step that a run really makes."""

    def __init__(self):
        self.rates = []

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        self.rates.append(optimizer.param_groups[0]["lr"])


def fitted(cfg, **settings):
    datamodule = DigitsDataModule(batch_size=64, val_fraction=0.15, test_fraction=0.2)
    datamodule.setup()
    used = UsedRates()
    trainer = Trainer(
        accelerator="cpu",
        limit_val_batches=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[used],
        **settings,
    )
    trainer.fit(build_model(cfg, datamodule.data_spec), datamodule=datamodule)
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
