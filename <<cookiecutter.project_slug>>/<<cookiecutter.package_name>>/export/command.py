"""What `export.py` does: model files from a checkpoint alone."""

import logging
import sys
from pathlib import Path

from omegaconf import DictConfig

from ..building import build
from ..checkpoints import read_checkpoint
from ..configuration import shown
from ..console import quiet_libraries
from ..evaluation import asked_of
from .parity import check_formats, export_model

log = logging.getLogger(__name__)


def export(request: DictConfig) -> None:
    quiet_libraries()
    check_formats(request.formats)
    checkpoint = read_checkpoint(request.checkpoint)
    config = asked_of(checkpoint, request, own=("checkpoint", "formats", "output", "tolerance"))
    datamodule = build(config.data)
    datamodule.prepare_data()
    datamodule.setup()
    images, _ = next(iter(datamodule.val_dataloader()))
    output = Path(request.output).expanduser().absolute()
    records = export_model(checkpoint.build_model(), images, list(request.formats), output, request.tolerance)
    for record in records:
        measured = (
            f"{shown(output / record['path'])} (largest difference {record.get('max_difference', float('nan')):.1e})"
        )
        log.info("%s: %s", record["format"], record.get("error") or measured)
    if any("error" in record for record in records):
        sys.exit(1)
