"""Exports a model and measures how far each written file is from the model, file by file."""

import logging
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .. import __version__
from ..configuration import ConfigError
from ..models.image_classifier import ImageClassifier
from ..run_directory import write_json
from . import onnx

log = logging.getLogger(__name__)

# Each format is a module with SUFFIX, write() and a class that runs the file.
FORMATS: dict[str, tuple[ModuleType, Any]] = {"onnx": (onnx, onnx.OnnxClassifier)}


class Deployed(nn.Module):
    """The whole path from pixels to probabilities, as it is shipped."""

    def __init__(self, classifier: ImageClassifier) -> None:
        super().__init__()
        self.preprocess = classifier.preprocess
        self.net = classifier.net

    def forward(self, image: Tensor) -> Tensor:
        return torch.softmax(self.net(self.preprocess(image)).float(), dim=1)


def check_formats(formats: list[str]) -> None:
    """
    Raises:
        ConfigError: a format does not exist.
    """
    for name in formats:
        if name not in FORMATS:
            raise ConfigError(f"formats has {name}. Allowed: {', '.join(FORMATS)}. Try formats=[onnx].")


def export_model(
    model: ImageClassifier, images: Tensor, formats: list[str], output: Path, tolerance: float
) -> list[dict[str, Any]]:
    """Write each format and compare it with the model on `images` and on random ones, batches of 1, 2 and 7.

    A file that fails the comparison is not kept.

    Args:
        images: real ones, uint8 (N, C, H, W).
        tolerance: largest difference of a probability.

    Returns:
        for each format `format`, `path` in `output`, `max_difference`, `label_agreement`, and `error` where it failed;
        the same stands in `export.json`.
    """
    deployed = Deployed(model).float().cpu().eval()
    data_spec = model.data_spec.to_dict()
    metadata = {"package": __package__.split(".")[0], "version": __version__, "run": model.config.get("run_id")}
    output.mkdir(parents=True, exist_ok=True)
    records = []
    for name in formats:
        format_module, run = FORMATS[name]
        path = output / f"model{format_module.SUFFIX}"
        unfinished = path.with_name(f".unfinished{path.suffix}")
        record: dict[str, Any] = {"format": name, "path": path.name}
        try:
            format_module.write(deployed, data_spec, metadata, unfinished)
            record |= measure_parity(deployed, run(unfinished), images.cpu())
            if record["max_difference"] > tolerance or not np.isfinite(record["max_difference"]):
                record["error"] = (
                    f"differs from the checkpoint by {record['max_difference']:.2g}, allowed {tolerance:g}"
                )
            else:
                unfinished.replace(path)
        except Exception as error:
            log.exception("Export to %s failed.", name)
            record["error"] = f"{type(error).__name__}: {error}"
        finally:
            # A file that gives other answers than its checkpoint must not be there to be shipped.
            unfinished.unlink(missing_ok=True)
        records.append(record)
    write_json(output / "export.json", {"tolerance": tolerance, "exports": records})
    return records


def measure_parity(deployed: nn.Module, run: Any, images: Tensor) -> dict[str, float]:
    """Give the largest difference of a probability and the share of equal labels."""
    generator = torch.Generator().manual_seed(0)
    random = torch.randint(0, 256, images.shape, dtype=torch.uint8, generator=generator)
    differences, agreements = [], []
    for source in (images, random):
        for size in (1, 2, 7, len(source)):
            batch = source[:size]
            with torch.inference_mode():
                expected = deployed(batch).numpy()
            got = run(batch.numpy())
            differences.append(float(np.abs(got - expected).max()))
            agreements.append(float((got.argmax(1) == expected.argmax(1)).mean()))
    return {"max_difference": max(differences), "label_agreement": min(agreements)}
