"""The LightningModule behind every network: preprocessing, loss, metrics, optimizer and schedule."""

import copy
import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import torch
from lightning import LightningModule
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn
from torchmetrics import Metric
from torchvision.transforms import v2

from ..configuration import ConfigError
from ..data.loading import Batch
from ..data.spec import DataSpec
from ..optim.parameter_groups import check_groups, parameter_groups, table
from ..optim.schedules import Schedule, lay_over
from .preprocess import Preprocess
from .stage_metrics import StageMetrics

log = logging.getLogger(__name__)

# Counts up when a checkpoint's contents change; checkpoints.py reads this one and those before it.
CHECKPOINT_FORMAT = 1


class ImageClassifier(LightningModule):
    """
    Args:
        net: from normalised images (N, C, H, W) to logits (N, classes).
        loss: from logits and labels (N,) to their mean loss. Mixed images have labels (N, classes) that add up to 1.
        metrics: makes the named metrics of one stage; `train` has fewer than `val` and `test`.
        optimizer: takes groups of parameters; its `lr` and `weight_decay` are those of the head's matrices.
        scheduler: takes the optimizer and the run's number of optimizer steps; see optim/schedules.py.
        backbone_lr_scale: learning rate of all but the network's `head`, as a share of the optimizer's.
        mixup_alpha: mix pairs of training images (Zhang et al., 2018); 0 is off.
        cutmix_alpha: paste rectangles of other training images (Yun et al., 2019); 0 is off. With both, each batch
            draws one of them.
        freeze_backbone: train the network's `head` alone, up to epoch `unfreeze_epoch` or to the end.
    """

    def __init__(
        self,
        net: nn.Module,
        data_spec: DataSpec,
        loss: nn.Module,
        metrics: Callable[[str], dict[str, Metric]],
        optimizer: "partial[torch.optim.Optimizer]",
        scheduler: Callable[..., Schedule],
        backbone_lr_scale: float = 1.0,
        mixup_alpha: float = 0.0,
        cutmix_alpha: float = 0.0,
        freeze_backbone: bool = False,
        unfreeze_epoch: int | None = None,
    ) -> None:
        super().__init__()
        self.data_spec = data_spec
        # From this the summary knows the sizes of every layer's output.
        side = data_spec.image_size
        self.example_input_array = torch.zeros(2, data_spec.channels, side, side, dtype=torch.uint8)
        # The run's configuration as plain dicts, for the checkpoint. Whoever builds the model sets it.
        self.config: dict[str, Any] = {}
        self.preprocess = Preprocess(data_spec.mean, data_spec.std)
        self.net = net
        self.loss = loss
        self.train_loss = loss
        self.build_optimizer = optimizer
        self.build_scheduler = scheduler
        self.backbone_lr_scale = backbone_lr_scale
        self.train_metrics = StageMetrics(metrics("train"))
        self.val_metrics = StageMetrics(metrics("val"))
        self.test_metrics = StageMetrics(metrics("test"))
        mixes = [
            kind(alpha=alpha, num_classes=data_spec.num_classes)
            for kind, alpha in ((v2.MixUp, mixup_alpha), (v2.CutMix, cutmix_alpha))
            if alpha
        ]
        self.mix = v2.RandomChoice(mixes) if mixes else None
        self._resumed_schedule: dict[str, Any] | None = None
        self._resumed_steps = 0
        self.freeze_backbone = freeze_backbone
        self.unfreeze_epoch = unfreeze_epoch
        if freeze_backbone:
            if not hasattr(net, "head"):
                raise ConfigError(
                    f"model.freeze_backbone needs a network with a head; {type(net).__name__} has none. "
                    "Try model.freeze_backbone=false, or model=torchvision."
                )
            if unfreeze_epoch is None:
                for parameter in self._backbone():
                    parameter.requires_grad = False

    def weigh_classes(self, weights: Tensor) -> None:
        """Weigh the training loss of each class, weights (classes,); the losses of val and test stay as they are.

        Raises:
            ConfigError: the loss knows no weights.
        """
        if not hasattr(self.loss, "weight"):
            raise ConfigError(
                f"model.class_weights needs a loss with `weight`; {type(self.loss).__name__} has none. "
                "Try data.balance=true."
            )
        self.train_loss = copy.deepcopy(self.loss)
        # Not in the checkpoint: the training split gives them again.
        self.train_loss.register_buffer("weight", weights, persistent=False)

    @property
    def metric_names(self) -> list[str]:
        return [f"{stage}/{name}" for stage in ("train", "val", "test") for name in self._stage(stage).all]

    def forward(self, image: Tensor) -> Tensor:
        """Give logits (N, classes) of uint8 images (N, C, H, W)."""
        logits: Tensor = self.net(self.preprocess(image))
        return logits

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        image, label = batch
        image, target = self.preprocess(image), label
        if self.mix:
            image, target = self.mix(image, label)
        loss, _ = self._measure("train", self.net(image), target, label, self.train_loss)
        if (self.global_step + 1) % self.trainer.log_every_n_steps == 0:  # type: ignore[attr-defined]
            self.log("train/loss_step", loss)
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        image, label = batch
        self._measure("val", self(image), label, label, self.loss)

    def test_step(self, batch: Batch, batch_idx: int) -> Tensor:
        image, label = batch
        _, logits = self._measure("test", self(image), label, label, self.loss)
        return logits

    def on_train_start(self) -> None:
        # A run that is resumed in the middle of an epoch does not start it.
        self.on_train_epoch_start()
        (schedule,) = self.trainer.lr_scheduler_configs
        if self._resumed_schedule is None:
            return
        if self._resumed_steps == self._total_steps or schedule.interval == "epoch":
            schedule.scheduler.load_state_dict(self._resumed_schedule)
        else:
            log.info("%d steps instead of %d: the schedule is laid over them.", self._total_steps, self._resumed_steps)
            optimizer, done = self.trainer.optimizers[0], self.trainer.global_step
            schedule.scheduler = lay_over(self.build_scheduler, optimizer, self._rates, self._total_steps, done)

    def on_train_epoch_start(self) -> None:
        # A frozen backbone keeps its norms' statistics, too.
        self.net.train(not self._is_frozen)
        if self._is_frozen:
            self._head.train()

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        if self._is_frozen and self.unfreeze_epoch is not None:
            # Not by requires_grad: DDP would never again share gradients that it did not know at its start.
            for parameter in self._backbone():
                parameter.grad = None

    def on_train_epoch_end(self) -> None:
        self._log("train")

    def on_validation_epoch_end(self) -> None:
        self._log("val")

    def on_test_epoch_end(self) -> None:
        self._log("test")

    def _measure(
        self, stage: str, logits: Tensor, target: Tensor, label: Tensor, loss_function: nn.Module
    ) -> tuple[Tensor, Tensor]:
        if logits.dtype.itemsize < 4:
            # Half precision loses digits in the sum of exponentials.
            logits = logits.float()
        loss: Tensor = loss_function(logits, target)
        self._stage(stage).update(loss, logits, label)
        return loss, logits

    def _log(self, stage: str) -> None:
        for name, metric in self._stage(stage).compute().items():
            self.log(f"{stage}/{name}", metric, prog_bar=name in ("loss", "acc"))

    def _stage(self, stage: str) -> StageMetrics:
        return cast(StageMetrics, getattr(self, f"{stage}_metrics"))

    @property
    def _head(self) -> nn.Module:
        return cast(nn.Module, self.net.head)

    @property
    def _is_frozen(self) -> bool:
        return self.freeze_backbone and (self.unfreeze_epoch is None or self.current_epoch < self.unfreeze_epoch)

    def _backbone(self) -> Iterator[nn.Parameter]:
        head = {id(parameter) for parameter in self._head.parameters()}
        return (parameter for parameter in self.net.parameters() if id(parameter) not in head)

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
        self._total_steps, self._rates = int(total_steps), [group["lr"] for group in groups]
        schedule = self.build_scheduler(optimizer, total_steps=self._total_steps)
        return cast(OptimizerLRScheduler, {"optimizer": optimizer, "lr_scheduler": schedule})

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["format"] = CHECKPOINT_FORMAT
        checkpoint["config"] = self.config
        checkpoint["data_spec"] = self.data_spec.to_dict()
        # What each rank has summed in the epoch that has begun.
        sums: list[Any] = [self.train_metrics.dump()]
        if self.trainer.world_size > 1:
            sums *= self.trainer.world_size
            torch.distributed.all_gather_object(sums, sums[0])
        checkpoint["train_metrics"] = sums
        checkpoint["total_steps"] = self._total_steps

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        # A schedule of another length may consist of other parts, which Lightning could not restore.
        (self._resumed_schedule,), checkpoint["lr_schedulers"] = checkpoint["lr_schedulers"], []
        self._resumed_steps = checkpoint["total_steps"]
        sums = checkpoint["train_metrics"]
        if len(sums) == self.trainer.world_size:
            self.train_metrics.load(sums[self.trainer.global_rank])
