"""The progress bar of training: Lightning's, at less cost (configs/callbacks/default.yaml)."""

from time import monotonic
from typing import Any

from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import RichProgressBar


class ProgressBar(RichProgressBar):
    """Moves as often as it is drawn, `refresh_rate` times a second. Lightning's moves at every batch, which takes
    longer than a small network's optimizer."""

    _moved = 0.0

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        now, is_last = monotonic(), batch_idx + 1 == self.total_train_batches
        if self.is_enabled and (is_last or now - self._moved >= 1 / self.refresh_rate):
            self._moved = now
            super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> Any:
        metrics = super().get_metrics(trainer, pl_module)
        # A logger's version number: the run directory's name says more.
        metrics.pop("v_num", None)
        return metrics
