"""Evaluates one checkpoint on one split of its own data: metrics, confusion matrix, table of classes."""

import csv
import logging
import os
from pathlib import Path
from typing import Any, cast

from hydra.core.hydra_config import HydraConfig
from lightning import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import RichProgressBar
from matplotlib.figure import Figure
from omegaconf import DictConfig, OmegaConf
from torch import Tensor
from torchmetrics.classification import MulticlassConfusionMatrix

from .building import build
from .checkpoints import Checkpoint, read_checkpoint
from .comparison import compare
from .configuration import RUN_DIR_VARIABLE, ConfigError, plain, shown
from .console import quiet_libraries
from .machine import fit_to_machine
from .run_directory import write_json

log = logging.getLogger(__name__)

# What an evaluation may set differently from the run; everything else made the weights what they are.
CHANGEABLE = ("data", "trainer", "seed")


def evaluate(request: DictConfig) -> None:
    quiet_libraries()
    output_dir = Path(HydraConfig.get().runtime.output_dir).absolute()
    checkpoint = read_checkpoint(request.checkpoint)
    config = fit_to_machine(asked_of(checkpoint, request, own=("checkpoint", "split")))
    seed_everything(config.seed, workers=True, verbose=False)

    datamodule = data_of(checkpoint, config)
    datamodule.test_split = request.split
    model = checkpoint.build_model()

    os.environ[RUN_DIR_VARIABLE] = str(output_dir)
    confusion = Confusion(checkpoint.data_spec.num_classes)
    trainer = build_evaluator(config, output_dir, [confusion, RichProgressBar()])
    trainer.test(model, datamodule=datamodule, verbose=False)
    if not trainer.is_global_zero:
        return

    results = {
        "checkpoint": str(checkpoint.path.absolute()),
        "split": request.split,
        "samples": int(confusion.matrix.sum()),
        "metrics": {
            name.replace("test/", f"{request.split}/"): value.item() for name, value in trainer.callback_metrics.items()
        },
        "world_size": trainer.world_size,
        "precision": trainer.precision,
    }
    write_json(output_dir / "results.json", results)
    write_confusion(confusion.matrix, checkpoint.data_spec.class_names, output_dir)
    write_classes(confusion.matrix, checkpoint.data_spec.class_names, output_dir)
    figures = "  ".join(f"{name} {value:.4f}" for name, value in results["metrics"].items())
    log.info("%s  (%d samples)\nresults in %s", figures, results["samples"], shown(output_dir))


def asked_of(checkpoint: Checkpoint, request: DictConfig, own: tuple[str, ...]) -> DictConfig:
    """Lay the overrides of the command line over the checkpoint's own configuration.

    Args:
        own: keys of the command itself.

    Raises:
        ConfigError: an override names a key that the checkpoint's configuration lacks or that shapes the model, or it
            has the wrong type.
    """
    changes = {key: value for key, value in plain(request).items() if key not in own}
    fixed = [key for key in changes if key in checkpoint.config and key not in CHANGEABLE]
    if fixed:
        raise ConfigError(
            f"{fixed[0]} belongs to the checkpoint and cannot be changed here. Allowed: precision= and keys below "
            f"{', '.join(CHANGEABLE)}. Try data.batch_size=32."
        )
    compare(changes, plain(checkpoint.config), additions=False)
    return cast(DictConfig, OmegaConf.merge(checkpoint.config, changes))


def data_of(checkpoint: Checkpoint, config: DictConfig) -> Any:
    """Build the data module of a configuration.

    Raises:
        ConfigError: its data are not there, or are not of the kind that the checkpoint was trained on.
    """
    datamodule = build(config.data)
    datamodule.prepare_data()
    datamodule.setup()
    for name in ("class_names", "channels", "image_size"):
        found, trained = getattr(datamodule.data_spec, name), getattr(checkpoint.data_spec, name)
        if found != trained:
            raise ConfigError(f"The data have {name} {found}, the checkpoint was trained on {trained}. Change data=.")
    return datamodule


def build_evaluator(config: DictConfig, output_dir: Path, callbacks: list[Callback]) -> Trainer:
    """Build a trainer that only evaluates: of the run's own settings, those that shape evaluation."""
    kept = ("accelerator", "devices", "num_nodes", "strategy", "precision", "limit_test_batches", "inference_mode")
    arguments = {key: config.trainer[key] for key in (*kept, "deterministic", "use_distributed_sampler")}
    return Trainer(
        **arguments,
        callbacks=callbacks,
        logger=False,
        default_root_dir=output_dir,
        enable_model_summary=False,
        enable_checkpointing=False,
    )


class Confusion(Callback):
    """Counts predictions by true class over all processes: `matrix[true, predicted]`, int64."""

    def __init__(self, num_classes: int) -> None:
        self.metric = MulticlassConfusionMatrix(num_classes, validate_args=False)
        self.matrix: Tensor

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.metric.to(pl_module.device)

    def on_test_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        self.metric.update(outputs, batch[1])

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.matrix = self.metric.compute().cpu()


def write_confusion(matrix: Tensor, class_names: tuple[str, ...], output_dir: Path) -> None:
    """Write confusion_matrix.csv and .png, one row for each true class."""
    with (output_dir / "confusion_matrix.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["true \\ predicted", *class_names])
        writer.writerows([name, *row] for name, row in zip(class_names, matrix.tolist(), strict=True))
    side = max(4.0, 0.45 * len(class_names))
    figure = Figure(figsize=(side + 1, side), layout="constrained")
    axes = figure.subplots()
    shares = matrix / matrix.sum(dim=1, keepdim=True).clamp(min=1)
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    axes.set(xlabel="predicted", ylabel="true", title="Confusion matrix (colour: share of the true class)")
    axes.set_xticks(range(len(class_names)), class_names, rotation=90)
    axes.set_yticks(range(len(class_names)), class_names)
    if len(class_names) <= 30:
        for true, row in enumerate(matrix.tolist()):
            for predicted, count in enumerate(row):
                if count:
                    colour = "white" if shares[true, predicted] > 0.5 else "black"
                    axes.text(predicted, true, count, ha="center", va="center", color=colour, fontsize=8)
    figure.savefig(output_dir / "confusion_matrix.png", dpi=150)


def write_classes(matrix: Tensor, class_names: tuple[str, ...], output_dir: Path) -> None:
    """Write per_class.csv: support, precision, recall and F1 of each class."""
    correct, true, predicted = matrix.diag(), matrix.sum(dim=1), matrix.sum(dim=0)
    precision = correct / predicted.clamp(min=1)
    recall = correct / true.clamp(min=1)
    f1 = 2 * correct / (true + predicted).clamp(min=1)
    columns = (class_names, true.tolist(), precision.tolist(), recall.tolist(), f1.tolist())
    with (output_dir / "per_class.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["class", "support", "precision", "recall", "f1"])
        writer.writerows(zip(*columns, strict=True))
