"""Exports the best weights at the end of a run (configs/export)."""

from pathlib import Path
from typing import Any

from lightning import LightningDataModule

from ..callbacks.end_of_run import EndOfRun
from ..models.image_classifier import ImageClassifier
from .writing import ExportSettings, export_model


class ExportModel(EndOfRun):
    """
    Raises:
        ConfigError: a format cannot be written here; said before training starts.
    """

    def __init__(self, formats: list[str] | str, tolerance: float, opset: int, benchmark: bool) -> None:
        self.settings = ExportSettings(formats, tolerance, opset, benchmark)

    def on_run_end(self, model: ImageClassifier, datamodule: LightningDataModule, results: dict[str, Any]) -> None:
        images, _ = next(iter(datamodule.val_dataloader()))
        output = Path(results["run_dir"]) / "export"
        for record in export_model(model, images, self.settings, output, results["metrics"]):
            results["exports"].append({**record, "path": str(output / record["path"])})
            if "error" in record:
                results["errors"].append(f"export {record['format']}: {record['error']}")
