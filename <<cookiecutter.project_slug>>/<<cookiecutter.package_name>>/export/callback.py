"""Exports the best weights at the end of a run (configs/export)."""

from pathlib import Path
from typing import Any

from lightning import LightningDataModule

from ..callbacks.end_of_run import EndOfRun
from ..models.image_classifier import ImageClassifier
from .writing import check_opset, export_model, wanted_formats


class ExportModel(EndOfRun):
    """
    Args:
        formats: names of modules in `formats/`, or `all`.
        tolerance: largest difference of a probability between a file and the checkpoint.
        opset: version of ONNX.

    Raises:
        ConfigError: a format cannot be written here; said before training starts.
    """

    def __init__(self, formats: list[str] | str, tolerance: float, opset: int) -> None:
        self.formats = wanted_formats(formats)
        check_opset(opset)
        self.tolerance = tolerance
        self.opset = opset

    def on_run_end(self, model: ImageClassifier, datamodule: LightningDataModule, results: dict[str, Any]) -> None:
        images, _ = next(iter(datamodule.val_dataloader()))
        output = Path(results["run_dir"]) / "export"
        records = export_model(model, images, self.formats, output, self.tolerance, self.opset, results["metrics"])
        for record in records:
            results["exports"].append({**record, "path": str(output / record["path"])})
            if "error" in record:
                results["errors"].append(f"export {record['format']}: {record['error']}")
