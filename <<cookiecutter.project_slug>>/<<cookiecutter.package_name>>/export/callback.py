"""Exports the best weights at the end of a run (configs/export)."""

from pathlib import Path
from typing import Any

from lightning import LightningDataModule

from ..callbacks.end_of_run import EndOfRun
from ..models.image_classifier import ImageClassifier
from .parity import check_formats, export_model


class ExportModel(EndOfRun):
    def __init__(self, formats: list[str], tolerance: float) -> None:
        check_formats(formats)
        self.formats = formats
        self.tolerance = tolerance

    def on_run_end(self, model: ImageClassifier, datamodule: LightningDataModule, results: dict[str, Any]) -> None:
        images, _ = next(iter(datamodule.val_dataloader()))
        output = Path(results["run_dir"]) / "export"
        for record in export_model(model, images, self.formats, output, self.tolerance):
            results["exports"].append({**record, "path": str(output / record["path"])})
            if "error" in record:
                results["errors"].append(f"export {record['format']}: {record['error']}")
