"""What `export.py` does: model files from a checkpoint alone."""

import json
import logging
import sys
from pathlib import Path
from typing import Any, cast

from omegaconf import DictConfig
from torch import Tensor

from ..checkpoints import Checkpoint, read_checkpoint
from ..configuration import ConfigError, run_of_checkpoint, shown
from ..console import quiet_libraries
from ..evaluation import asked_of, data_of
from .writing import ExportSettings, export_model

log = logging.getLogger(__name__)

OWN_KEYS = ("checkpoint", "formats", "output", "tolerance", "opset", "benchmark")


def export(request: DictConfig) -> None:
    quiet_libraries()
    settings = ExportSettings(request.formats, request.tolerance, request.opset, request.benchmark)
    checkpoint = read_checkpoint(request.checkpoint)
    config = asked_of(checkpoint, request, own=OWN_KEYS)
    output = Path(request.output).expanduser().absolute()
    images = real_images(checkpoint, config, asked="data" in request)
    records = export_model(checkpoint.build_model(), images, settings, output, metrics_of_run(checkpoint.path))
    for record in records:
        measured = (
            f"{shown(output / record['path'])} (largest difference {record.get('max_difference', float('nan')):.1e})"
        )
        log.info("%s: %s", record["format"], record.get("error") or measured)
    if any("error" in record for record in records):
        sys.exit(1)


def real_images(checkpoint: Checkpoint, config: DictConfig, asked: bool) -> Tensor | None:
    """Give a batch of the validation split; None where the data are not on this machine.

    Args:
        asked: something about the data was asked for, so that they have to be there.
    """
    try:
        images, _ = next(iter(data_of(checkpoint, config).val_dataloader()))
    except (ConfigError, OSError) as error:
        if asked:
            raise
        log.warning("The files are compared on random images only. %s", error)
        return None
    return cast(Tensor, images)


def metrics_of_run(checkpoint: Path) -> dict[str, Any]:
    """Give what a run reached with its best checkpoint; nothing for other checkpoints and for one on its own."""
    try:
        results = json.loads((run_of_checkpoint(checkpoint) / "results.json").read_text(encoding="utf-8"))
        if Path(results["best_checkpoint"]).name == checkpoint.name:
            return {**results["metrics"]}
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return {}
