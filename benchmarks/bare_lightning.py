"""Lightning alone: a module with a training step, no callbacks, metrics, loggers or validation.

`python bare_lightning.py PROJECT PACKAGE OVERRIDES` prints the training samples per second of the same network, data,
batch size, optimizer, schedule and clipping as the project's, served by the project's data module.
"""

import sys
from time import perf_counter
from typing import Any

from job import WARM_UP_BATCHES, load, mean_and_std, optimizer_and_schedule
from lightning import LightningModule, Trainer
from torch import Tensor, nn


class Bare(LightningModule):
    mean: Tensor
    std: Tensor

    def __init__(self, net: nn.Module, mean: Tensor, std: Tensor, config: Any) -> None:
        super().__init__()
        self.net = net
        self.config = config
        self.loss = nn.CrossEntropyLoss()
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)
        self.started = self.seconds = 0.0

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        image, label = batch
        return self.loss(self.net((image.float() / 255 - self.mean) / self.std), label)

    def on_train_batch_start(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        if batch_idx == WARM_UP_BATCHES and self.current_epoch == 0:
            self.started = perf_counter()

    def on_train_end(self) -> None:
        self.seconds = perf_counter() - self.started

    def configure_optimizers(self) -> Any:
        steps = int(self.trainer.estimated_stepping_batches)
        optimizer, schedule = optimizer_and_schedule(self.net, self.config, steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def main(project: str, package: str, *overrides: str) -> None:
    datamodule, net, config = load(project, package, list(overrides))
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=config.trainer.max_epochs,
        gradient_clip_val=config.trainer.gradient_clip_val,
        limit_val_batches=0,
        use_distributed_sampler=False,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Bare(net, *mean_and_std(datamodule), config)
    trainer.fit(model, datamodule=datamodule)
    print((trainer.global_step - WARM_UP_BATCHES) * config.data.batch_size / model.seconds)


if __name__ == "__main__":
    main(*sys.argv[1:])
