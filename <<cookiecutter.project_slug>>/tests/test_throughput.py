"""The speed that results.json states, on a clock that the test moves."""

import os

import pytest
import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO
from torch.utils.data import DataLoader, TensorDataset

from << cookiecutter.package_name >> import checkpoints
from << cookiecutter.package_name >>.callbacks import throughput
from << cookiecutter.package_name >>.callbacks.throughput import Throughput
from << cookiecutter.package_name >>.checkpoints import AtomicCheckpointIO
from << cookiecutter.package_name >>.machine import fit_to_machine

FIRST_STEP, STEP, EPOCH_END, VALIDATION, CHECKPOINT = 50.0, 1.0, 10.0, 100.0, 1000.0


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Slow(LightningModule):
    def __init__(self, clock):
        super().__init__()
        self.clock = clock
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def training_step(self, batch, batch_idx):
        self.clock.now += FIRST_STEP if self.global_step == 0 else STEP
        return self.weight.square().sum()

    def validation_step(self, batch, batch_idx):
        self.clock.now += VALIDATION

    def on_train_epoch_end(self):
        self.clock.now += EPOCH_END

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.fixture
def fit(monkeypatch, tmp_path):
    """Train on batches of two samples, four an epoch, and give the callback."""
    clock = Clock()
    monkeypatch.setattr(throughput, "perf_counter", clock)
    monkeypatch.setattr(checkpoints, "perf_counter", clock)
    save = TorchCheckpointIO.save_checkpoint

    def slowly(*arguments, **options):
        clock.now += CHECKPOINT
        save(*arguments, **options)

    monkeypatch.setattr(TorchCheckpointIO, "save_checkpoint", slowly)

    def run(**settings):
        loader = DataLoader(TensorDataset(torch.zeros(8, 1), torch.zeros(8)), batch_size=2)
        measured = Throughput()
        trainer = Trainer(
            accelerator="cpu",
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[measured, ModelCheckpoint(tmp_path)],
            plugins=[AtomicCheckpointIO()],
            **settings,
        )
        trainer.fit(Slow(clock), loader, loader)
        return measured

    return run


def test_speed_counts_all_of_training_but_validation_and_the_writing_of_checkpoints(fit):
    measured = fit(max_epochs=3)
    assert measured.samples == 2 * (3 * 4 - 2)
    assert measured.seconds == (3 * 4 - 2) * STEP + 3 * EPOCH_END
    assert measured.samples_per_second() == measured.samples / measured.seconds


def test_validation_in_the_middle_of_an_epoch_is_left_out(fit):
    measured = fit(max_epochs=1, val_check_interval=1)
    assert measured.seconds == 2 * STEP + EPOCH_END


def test_the_first_batches_count_where_no_others_follow(fit):
    measured = fit(max_steps=2)
    assert (measured.samples, measured.seconds) == (2 * 2, FIRST_STEP + STEP + EPOCH_END)


def test_a_run_without_a_step_has_no_speed(fit):
    assert Throughput().samples_per_second() is None
    assert fit(max_steps=0).samples_per_second() is None


@pytest.mark.parametrize("gpu", [False, True])
def test_adam_looks_for_a_gpu_driver_before_every_step_only_where_there_is_a_gpu(gpu, monkeypatch, compose):
    # What importing Lightning leaves behind.
    monkeypatch.setenv("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    fit_to_machine(compose())
    assert ("PYTORCH_NVML_BASED_CUDA_CHECK" in os.environ) == gpu
