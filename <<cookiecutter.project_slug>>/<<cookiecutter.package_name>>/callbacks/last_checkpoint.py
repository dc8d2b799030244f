"""Keeps the checkpoint from which a run goes on as if it had never stopped (configs/callbacks/minimal.yaml)."""

import logging
from datetime import timedelta
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint, ModelCheckpoint

from ..configuration import ConfigError

log = logging.getLogger(__name__)


class LastCheckpoint(Checkpoint):
    """Saves between two batches, when everything of the first is done and logged and nothing of the second has begun.

    Lightning's own callback saves in the middle of a batch's or an epoch's end; what was still to come is lost.

    Args:
        every_n_epochs: save before an epoch's first batch.
        every_n_train_steps: of the optimizer.
        train_time_interval: arguments of `datetime.timedelta`: `{minutes: 10}`.
    """

    def __init__(
        self,
        filename: str = "last",
        every_n_epochs: int | None = 1,
        every_n_train_steps: int | None = None,
        train_time_interval: dict[str, float] | None = None,
    ) -> None:
        if Path(filename).name != filename:
            raise ConfigError(
                f"callbacks.last_checkpoint.filename must be a name without folders, got {filename}. "
                "Try callbacks.last_checkpoint.filename=last."
            )
        self.filename = filename
        self.every_n_epochs = every_n_epochs
        self.every_n_train_steps = every_n_train_steps
        self.interval = timedelta(**train_time_interval) if train_time_interval else None
        self.path: Path | None = None
        # What was measured up to the checkpoint that is resumed.
        self.metrics: dict[str, float] = {}
        self._saved_at = (0, 0, monotonic())
        self._saving = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._saved_at = (trainer.current_epoch, trainer.global_step, monotonic())
        trainer.callback_metrics.update({name: torch.tensor(value) for name, value in self.metrics.items()})

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if is_between_steps(trainer, batch_idx) and self._is_due(trainer):
            self.save(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.save(trainer)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        # Other ranks do not know of the exception and would not take part.
        done: Any = trainer.fit_loop.epoch_loop.batch_progress.current
        alone = isinstance(exception, Exception) and trainer.training and trainer.world_size == 1
        if alone and is_between_steps(trainer, done.processed) and trainer.global_step > self._saved_at[1]:
            self.save(trainer)

    def _is_due(self, trainer: Trainer) -> bool:
        epoch, step, time = self._saved_at
        due = bool(self.every_n_epochs and trainer.current_epoch - epoch >= self.every_n_epochs)
        if self.every_n_train_steps:
            due |= trainer.global_step // self.every_n_train_steps > step // self.every_n_train_steps
        if self.interval is not None:
            # Ranks' clocks differ.
            due |= trainer.strategy.reduce_boolean_decision(
                monotonic() - time >= self.interval.total_seconds(), all=False
            )
        return due

    def save(self, trainer: Trainer) -> None:
        """Save now. Called on every rank between two batches, or in the middle of validation, which is then repeated.

        A state that holds NaN or infinity never replaces the last good one.
        """
        self._saved_at = (trainer.current_epoch, trainer.global_step, monotonic())
        weights = trainer.lightning_module.parameters()
        if not all(bool(torch.isfinite(weight).all()) for weight in weights):
            log.warning("The weights are not finite at step %d: the last checkpoint stays.", trainer.global_step)
            return
        path = Path(trainer.default_root_dir) / "checkpoints" / f"{self.filename}.ckpt"
        # Rows up to here belong to this checkpoint; later ones are written again by whoever resumes from it.
        for logger in trainer.loggers:
            logger.save()
        self._saving = True
        try:
            trainer.save_checkpoint(path)
        finally:
            self._saving = False
        self.path = path

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if self._saving:
            _between_batches(checkpoint["loops"]["fit_loop"], validating=trainer.validating)
            checkpoint["metrics"] = {name: value.item() for name, value in trainer.callback_metrics.items()}

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        self.metrics = checkpoint.get("metrics", {})
        for callback in trainer.checkpoint_callbacks:
            state = checkpoint["callbacks"].get(callback.state_key)
            if state and isinstance(callback, ModelCheckpoint):
                _find_again(state, Path(str(callback.dirpath)))


def _find_again(state: dict[str, Any], folder: Path) -> None:
    """Let Lightning find its best checkpoints after the run was moved: it forgets those of another folder."""

    def moved(path: str) -> str:
        return str(folder / Path(path).name) if path else path

    if state["best_model_path"] and Path(moved(state["best_model_path"])).is_file():
        state["dirpath"] = str(folder)
        state["best_k_models"] = {moved(path): score for path, score in state["best_k_models"].items()}
        for name in ("best_model_path", "kth_best_model_path", "last_model_path"):
            state[name] = moved(state[name])


def is_between_steps(trainer: Trainer, batches: int) -> bool:
    """Say whether, after so many batches of an epoch, no gradient is waiting for more.

    After a batch with validation Lightning would count one step too many.
    """
    after_validation = (
        batches > 0
        and isinstance(trainer.val_check_batch, int)
        and trainer.enable_validation
        and batches % trainer.val_check_batch == 0
    )
    return batches % trainer.accumulate_grad_batches == 0 and not after_validation


def _between_batches(fit_loop: dict[str, Any], validating: bool) -> None:
    """Write Lightning's counts as they are between two batches: nothing has begun that is not finished.

    Args:
        validating: let validation begin again.
    """
    epochs, batches = fit_loop["epoch_progress"], fit_loop["epoch_loop.batch_progress"]
    # Before an epoch's first batch the epoch has not begun either.
    not_begun = [batches] if batches["current"]["processed"] else [batches, epochs]
    for count in (progress[span] for progress in not_begun for span in ("total", "current")):
        count["ready"] = count["started"] = count["completed"] = count["processed"]
    if validating:
        progress = fit_loop["epoch_loop.val_loop.batch_progress"]
        progress["total"] = {"ready": 1, "started": 1, "processed": 0, "completed": 0}
        progress["current"] = {"ready": 0, "started": 0, "processed": 0, "completed": 0}
    else:
        batches["is_last_batch"] = False
