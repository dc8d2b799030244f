"""The LightningModule behind every network: preprocessing, loss, metrics, optimizer and schedule."""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
from lightning import LightningModule
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn
from torchmetrics import MeanMetric, Metric
from torchmetrics.classification import MulticlassAccuracy

from ..configuration import ConfigError
from ..data.loading import Batch
from ..data.spec import DataSpec
from ..optim.parameter_groups import check_groups, parameter_groups, table
from ..optim.schedules import Schedule
from .preprocess import Preprocess

log = logging.getLogger(__name__)


class ImageClassifier(LightningModule):
    """
    Args:
        net: from normalised images (N, C, H, W) to logits (N, classes).
        optimizer: takes groups of parameters; its `lr` and `weight_decay` are those of the head's matrices.
        scheduler: takes the optimizer and the run's number of optimizer steps; see optim/schedules.py.
        backbone_lr_scale: learning rate of all but the network's `head`, as a share of the optimizer's.
    """

    def __init__(
        self,
        net: nn.Module,
        data_spec: DataSpec,
        optimizer: "partial[torch.optim.Optimizer]",
        scheduler: Callable[..., Schedule],
        backbone_lr_scale: float = 1.0,
    ) -> None:
        super().__init__()
        self.data_spec = data_spec
        # The run's configuration as plain dicts, for the checkpoint. Whoever builds the model sets it.
        self.config: dict[str, Any] = {}
        self.preprocess = Preprocess(data_spec.mean, data_spec.std)
        self.net = net
        self.loss = nn.CrossEntropyLoss()
        self.build_optimizer = optimizer
        self.build_scheduler = scheduler
        self.backbone_lr_scale = backbone_lr_scale
        # Summed on the device and read once an epoch: a value read every step would wait for the device every step.
        stages = ("train", "val", "test")
        # NaN is kept: a loss that is not a number has to be seen.
        losses = {f"{stage}_loss": MeanMetric(nan_strategy="disable") for stage in stages}
        accuracies = {
            f"{stage}_acc": MulticlassAccuracy(data_spec.num_classes, average="micro", validate_args=False)
            for stage in stages
        }
        self.metrics = nn.ModuleDict({**losses, **accuracies})
        self.metric_names = [name.replace("_", "/") for name in self.metrics]

    def forward(self, image: Tensor) -> Tensor:
        """Give logits (N, classes) of uint8 images (N, C, H, W)."""
        logits: Tensor = self.net(self.preprocess(image))
        return logits

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        loss, _ = self._step("train", batch)
        if (self.global_step + 1) % self.trainer.log_every_n_steps == 0:  # type: ignore[attr-defined]
            self.log("train/loss_step", loss)
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        self._step("val", batch)

    def test_step(self, batch: Batch, batch_idx: int) -> Tensor:
        _, logits = self._step("test", batch)
        return logits

    def on_train_epoch_end(self) -> None:
        self._log("train")

    def on_validation_epoch_end(self) -> None:
        self._log("val")

    def on_test_epoch_end(self) -> None:
        self._log("test")

    def _step(self, stage: str, batch: Batch) -> tuple[Tensor, Tensor]:
        image, label = batch
        logits = self(image)
        if logits.dtype.itemsize < 4:
            # Half precision loses digits in the sum of exponentials.
            logits = logits.float()
        loss: Tensor = self.loss(logits, label)
        # Once for each sample: torchmetrics drops `weight` where NaN is kept.
        self._metric(f"{stage}_loss").update(loss.detach().expand(len(label)))
        self._metric(f"{stage}_acc").update(logits.detach(), label)
        return loss, logits

    def _log(self, stage: str) -> None:
        for name in ("loss", "acc"):
            self.log(f"{stage}/{name}", self._metric(f"{stage}_{name}"), prog_bar=True)

    def _metric(self, name: str) -> Metric:
        return cast(Metric, self.metrics[name])

    def configure_optimizers(self) -> OptimizerLRScheduler:
        total_steps = self.trainer.estimated_stepping_batches
        if total_steps == float("inf"):
            raise ConfigError(
                "The run has no end that a learning-rate schedule could be laid over. "
                "Set trainer.max_epochs or trainer.max_steps. Try trainer.max_epochs=20."
            )
        settings = self.build_optimizer.keywords
        groups = parameter_groups(self.net, settings["lr"], settings.get("weight_decay", 0.0), self.backbone_lr_scale)
        check_groups(self, groups)
        log.info("%s", table(groups))
        try:
            optimizer = self.build_optimizer(groups)
        except ValueError as error:
            raise ConfigError(f"The optimizer refuses its arguments: {error}. Try optimizer.lr=0.001.") from error
        schedule = self.build_scheduler(optimizer, total_steps=int(total_steps))
        return cast(OptimizerLRScheduler, {"optimizer": optimizer, "lr_scheduler": schedule})

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["config"] = self.config
        checkpoint["data_spec"] = self.data_spec.to_dict()
