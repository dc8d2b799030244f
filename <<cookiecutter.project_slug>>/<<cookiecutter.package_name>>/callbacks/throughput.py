"""Measures how many samples training takes in a second, without validation and the writing of checkpoints."""

from time import perf_counter
from typing import Any

from lightning import Callback, LightningModule, Trainer

# In the first batches libraries set themselves up: they count only where no others follow.
WARM_UP_BATCHES = 2


class Throughput(Callback):
    def __init__(self) -> None:
        self.batches = 0
        self.samples = 0
        self.seconds = 0.0
        self._since: float | None = None

    def samples_per_second(self) -> float | None:
        return self.samples / self.seconds if self.seconds else None

    def _resume(self, trainer: Trainer) -> None:
        self._since = _clock(trainer)

    def _pause(self, trainer: Trainer) -> None:
        if self._since is not None:
            self.seconds += _clock(trainer) - self._since
        self._since = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._resume(trainer)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if self.batches == WARM_UP_BATCHES:
            self.samples, self.seconds = 0, 0.0
            self._resume(trainer)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.batches += 1
        self.samples += len(batch[1]) * trainer.world_size

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._pause(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._resume(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._pause(trainer)


def _clock(trainer: Trainer) -> float:
    """Give the seconds of a clock that stands still while a checkpoint is written."""
    # Only our own checkpoint_io counts them: under another one, writing is a part of training.
    return perf_counter() - getattr(trainer.strategy.checkpoint_io, "seconds", 0.0)
