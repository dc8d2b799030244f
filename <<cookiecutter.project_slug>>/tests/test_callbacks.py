"""Averaged weights: what is validated, stored and tested is the average, what is trained is not. The progress bar."""

import json
from itertools import count

import pytest
import torch
from lightning import Callback, Trainer
from lightning.pytorch.callbacks import RichProgressBar
from lightning.pytorch.loggers import CSVLogger

from << cookiecutter.package_name >>.building import build_model
from << cookiecutter.package_name >>.callbacks import progress_bar
from << cookiecutter.package_name >>.callbacks.averaging import ExponentialMovingAverage
from << cookiecutter.package_name >>.configuration import ConfigError
from << cookiecutter.package_name >>.data.digits import DigitsDataModule
from << cookiecutter.package_name >>.machine import fit_to_machine
from << cookiecutter.package_name >>.request import check

QUICK = ("model=mlp", "export=null", "logger=null", "trainer.max_epochs=2", "trainer.enable_progress_bar=false")


class Weights(Callback):
    """Notes a weight after every optimizer step and at validation."""

    def __init__(self):
        self.trained, self.validated = [], []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.trained.append(pl_module.net.head.weight.detach().clone())

    def on_validation_batch_end(self, trainer, pl_module, outputs, batch, batch_idx, dataloader_idx=0):
        self.validated.append(pl_module.net.head.weight.detach().clone())


def averaged_by_hand(weights, decay):
    average = weights[0]
    for number, weight in enumerate(weights[1:], start=1):
        keep = min(decay, (1 + number) / (10 + number))
        average = keep * average + (1 - keep) * weight
    return average


def fit(compose, *callbacks):
    datamodule = DigitsDataModule(batch_size=64, val_fraction=0.15, test_fraction=0.2)
    datamodule.setup()
    classifier = build_model(fit_to_machine(compose("model=linear")), datamodule.data_spec)
    trainer = Trainer(
        accelerator="cpu", max_epochs=1, limit_train_batches=15, limit_val_batches=1, num_sanity_val_steps=0,
        logger=False, enable_checkpointing=False, enable_model_summary=False,
        enable_progress_bar=any(isinstance(callback, RichProgressBar) for callback in callbacks),
        callbacks=list(callbacks),
    )  # fmt: skip
    trainer.fit(classifier, datamodule=datamodule)
    return classifier


@pytest.mark.parametrize("decay", [0.5, 0.999])
def test_validation_and_the_end_of_training_see_the_average_of_all_steps(decay, compose):
    noted = Weights()
    classifier = fit(compose, noted, ExponentialMovingAverage(decay))
    expected = averaged_by_hand(noted.trained, decay)
    torch.testing.assert_close(noted.validated[0], expected)
    torch.testing.assert_close(classifier.net.head.weight, expected)
    assert (noted.trained[-1] - expected).abs().max() > 1e-4


def test_a_failing_validation_leaves_the_trained_weights_in_the_model(compose):
    class Fails(Weights):
        def on_validation_batch_end(self, *arguments, **keywords):
            raise RuntimeError("out of luck")

        def on_exception(self, trainer, pl_module, exception):
            self.left = pl_module.net.head.weight.detach().clone()

    noted = Fails()
    with pytest.raises(RuntimeError, match="out of luck"):
        fit(compose, ExponentialMovingAverage(0.9), noted)
    torch.testing.assert_close(noted.left, noted.trained[-1])


def test_a_decay_of_one_or_more_is_refused():
    with pytest.raises(ConfigError, match=r"callbacks\.ema\.decay must be at least 0 and below 1, got 1\.0\. Try"):
        ExponentialMovingAverage(1.0)


@pytest.mark.slow
def test_a_checkpoint_holds_the_average_as_its_weights_and_evaluates_to_it_in_a_fresh_process(here, door, tmp_path):
    run_dir = tmp_path / "run"
    done = here("train", *QUICK, "callbacks=ema", f"hydra.run.dir={run_dir}")
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads((run_dir / "results.json").read_text(encoding="utf-8"))
    for name in ("best", "last"):
        stored = torch.load(run_dir / "checkpoints" / f"{name}.ckpt", weights_only=True)
        assert stored["state_dict"].keys() == stored["current_model_state"].keys()
        weight = "net.head.weight"
        assert (stored["state_dict"][weight] - stored["current_model_state"][weight]).abs().max() > 1e-4
    evaluated = here("eval", f"checkpoint={run_dir}", "split=val")
    assert evaluated.returncode == 0, evaluated.stderr
    validated = json.loads((run_dir / "eval-val" / "results.json").read_text(encoding="utf-8"))
    # The run's best score was measured on averaged weights, and these are what the file gives.
    assert validated["metrics"]["val/loss"] == pytest.approx(results["best_score"], abs=1e-6)
    tested = door("eval", f"checkpoint={run_dir}")
    assert tested.returncode == 0, tested.stderr
    again = json.loads((run_dir / "eval-test" / "results.json").read_text(encoding="utf-8"))
    assert again["metrics"] == pytest.approx(
        {name: value for name, value in results["metrics"].items() if name.startswith("test/")}, abs=1e-6
    )


def test_averaged_weights_are_a_right_request():
    check("train", ["callbacks=ema", "callbacks.ema.decay=0.99"])


def test_the_bar_moves_a_few_times_a_second_and_at_the_last_batch(compose, monkeypatch):
    tenths, moved = count(1), []
    monkeypatch.setattr(progress_bar, "monotonic", lambda: next(tenths) / 10)
    monkeypatch.setattr(RichProgressBar, "on_train_batch_end", lambda *arguments: moved.append(arguments[-1]))
    fit(compose, progress_bar.ProgressBar(refresh_rate=4))
    # A quarter of a second is three tenths.
    assert moved == [2, 5, 8, 11, 14]


def test_the_bar_shows_metrics_and_no_version_number(compose, tmp_path):
    bar = progress_bar.ProgressBar(refresh_rate=4)
    trainer = Trainer(accelerator="cpu", logger=CSVLogger(tmp_path, version=7), callbacks=[bar])
    trainer.progress_bar_metrics["train/loss"] = 0.5
    assert "v_num" in RichProgressBar.get_metrics(bar, trainer, None)
    assert bar.get_metrics(trainer, None) == {"train/loss": 0.5}


@pytest.mark.parametrize("refresh_rate", [0, 4])
def test_the_bar_can_be_drawn_or_not(refresh_rate, compose, capsys):
    fit(compose, progress_bar.ProgressBar(refresh_rate=refresh_rate))
    assert ("15/15" in capsys.readouterr().out) == bool(refresh_rate)
