"""Measures how many samples training takes in a second, without validation and checkpoints of whole epochs."""

from time import perf_counter
from typing import Any

from lightning import Callback, LightningModule, Trainer


class Throughput(Callback):
    def __init__(self) -> None:
        self.samples = 0
        self.seconds = 0.0
        self._since: float | None = None

    def samples_per_second(self) -> float | None:
        return self.samples / self.seconds if self.seconds else None

    def _resume(self) -> None:
        self._since = perf_counter()

    def _pause(self) -> None:
        if self._since is not None:
            self.seconds += perf_counter() - self._since
        self._since = None

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._resume()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.samples += len(batch[1]) * trainer.world_size

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._pause()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._resume()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._pause()
