"""Averaged weights (configs/callbacks/ema.yaml) on Lightning's own callback."""

from typing import Any

from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import WeightAveraging
from torch import Tensor
from torch.optim.swa_utils import get_ema_multi_avg_fn

from ..configuration import ConfigError


class ExponentialMovingAverage(WeightAveraging):
    """Averages the weights after every optimizer step; validation, test, export and checkpoints use the average.

    Args:
        decay: share of the average that a step keeps, at least 0 and below 1. It starts lower, at (1 + n) / (10 + n)
            in update n, so that a short run is not the average of its beginning.
    """

    def __init__(self, decay: float) -> None:
        if not 0 <= decay < 1:
            raise ConfigError(f"callbacks.ema.decay must be at least 0 and below 1, got {decay}. Try 0.999.")

        def average(averages: Any, current: Any, updates: Tensor | int) -> None:
            now = min(decay, (1 + int(updates)) / (10 + int(updates)))
            get_ema_multi_avg_fn(now)(averages, current, updates)  # type: ignore[no-untyped-call]

        super().__init__(multi_avg_fn=average)
        self._swapped = False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if "FSDP" in type(trainer.strategy).__name__:
            raise ConfigError(
                "Averaged weights do not work on shares of a model. Try callbacks=default, or strategy=ddp."
            )
        super().setup(trainer, pl_module, stage)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # Not yet: a run that is resumed for more epochs needs the trained weights in its last checkpoint.
        pass

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._copy_average_to_current(pl_module)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(trainer, pl_module, checkpoint)
        if self._swapped:
            # In the middle of validation the model holds the average.
            names = ("state_dict", "current_model_state")
            checkpoint["state_dict"], checkpoint["current_model_state"] = (checkpoint[name] for name in reversed(names))

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        # Between validation's beginning and end the two sets of weights have changed places.
        if self._swapped:
            self._swap_models(pl_module)

    def _swap_models(self, pl_module: LightningModule) -> None:
        super()._swap_models(pl_module)
        self._swapped = not self._swapped
