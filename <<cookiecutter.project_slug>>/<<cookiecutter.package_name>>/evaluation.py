"""Evaluates one checkpoint on one split of its own data: metrics, tables and pictures that explain them."""

import csv
import logging
import os
from pathlib import Path
from typing import Any, cast

import numpy as np
from hydra.core.hydra_config import HydraConfig
from lightning import Callback, Trainer, seed_everything
from lightning.pytorch.callbacks import RichProgressBar
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from .building import build
from .checkpoints import Checkpoint, read_checkpoint
from .comparison import compare
from .configuration import RUN_DIR_VARIABLE, ConfigError, plain, run_of_checkpoint, shown
from .console import quiet_libraries
from .figures import draw_confusion, draw_mistakes, draw_reliability
from .findings import BINS, Findings
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
    findings = Findings(checkpoint.data_spec)
    trainer = build_evaluator(config, output_dir, [findings, RichProgressBar()])
    trainer.test(model, datamodule=datamodule, verbose=False)
    if not trainer.is_global_zero:
        return

    class_names = checkpoint.data_spec.class_names
    matrix = findings.confusion
    results = {
        "checkpoint": str(checkpoint.path.absolute()),
        "split": request.split,
        "samples": int(matrix.sum()),
        "metrics": {
            name.replace("test/", f"{request.split}/"): value.item() for name, value in trainer.callback_metrics.items()
        },
        "world_size": trainer.world_size,
        "precision": trainer.precision,
    }
    write_json(output_dir / "results.json", results)
    write_confusion(matrix, class_names, output_dir)
    write_classes(matrix, class_names, output_dir)
    write_reliability(findings.reliability, output_dir)
    write_mistakes(findings.mistakes, class_names, output_dir)
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
    datamodule.read_split(run_of_checkpoint(checkpoint.path))
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


def write_confusion(matrix: Tensor, class_names: tuple[str, ...], output_dir: Path) -> None:
    """Write confusion_matrix.csv and .png, one row for each true class."""
    with (output_dir / "confusion_matrix.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["true \\ predicted", *class_names])
        writer.writerows([name, *row] for name, row in zip(class_names, matrix.tolist(), strict=True))
    draw_confusion(matrix, class_names, output_dir / "confusion_matrix.png")


def write_reliability(bins: dict[str, Tensor], output_dir: Path) -> None:
    """Write reliability.csv and .png: of each bin of confidence its samples, mean confidence and accuracy."""
    samples, confidence, accuracy = (bins[name] for name in ("samples", "confidence", "accuracy"))
    with (output_dir / "reliability.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["from", "to", "samples", "confidence", "accuracy"])
        for number, row in enumerate(zip(samples.int().tolist(), confidence.tolist(), accuracy.tolist(), strict=True)):
            writer.writerow([number / BINS, (number + 1) / BINS, *(row if row[0] else (0, "", ""))])
    # Expected calibration error: Naeini et al., 2015.
    error = ((accuracy - confidence).abs() * samples / samples.sum()).nansum().item()
    draw_reliability(samples, accuracy, error, output_dir / "reliability.png")


def write_mistakes(found: dict[str, np.ndarray], class_names: tuple[str, ...], output_dir: Path) -> None:
    """Write mistakes.png; where there are none, no picture of an earlier evaluation is left."""
    path = output_dir / "mistakes.png"
    path.unlink(missing_ok=True)
    if len(found["image"]):
        draw_mistakes(found, class_names, path)


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
