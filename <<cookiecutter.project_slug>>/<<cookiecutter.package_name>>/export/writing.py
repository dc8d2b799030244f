"""Writes a model in each wanted format and keeps the files that agree with it (export.py and the end of a run)."""

import json
import logging
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from .. import __version__
from ..configuration import ConfigError
from ..data.images import READING
from ..inference import formats as written_here
from ..models.image_classifier import ImageClassifier
from ..run_directory import write_json
from .deployed import Deployed
from .latency import measure_latency, table
from .parity import measure_parity

log = logging.getLogger(__name__)


@dataclass
class ExportSettings:
    """
    Args:
        formats: names of modules in `formats/`, or `all`.
        tolerance: largest difference of a probability between a file and the checkpoint.
        opset: version of ONNX.
        benchmark: measure latencies, too.

    Raises:
        ConfigError: a format cannot be written here.
    """

    formats: list[str] | str
    tolerance: float
    opset: int
    benchmark: bool

    def __post_init__(self) -> None:
        self.formats = wanted_formats(self.formats)


def wanted_formats(formats: list[str] | str) -> list[str]:
    """Give the names of formats; `all` stands for every one.

    Raises:
        ConfigError: a format does not exist, or a package that it needs is not installed.
    """
    known = written_here()
    wanted = list(known) if formats == "all" else list(formats)
    for name in wanted:
        if name not in known:
            raise ConfigError(f"formats has {name}. Allowed: {', '.join(known)}. Try formats=[{next(iter(known))}].")
        missing = [package for package in known[name].NEEDS if find_spec(package) is None]
        if missing:
            raise ConfigError(
                f"The format {name} needs {' and '.join(missing)}, not installed here. "
                f"Try pip install {' '.join(missing)}, or export=null."
            )
    return wanted


def export_model(
    model: ImageClassifier, images: Tensor | None, settings: ExportSettings, output: Path, metrics: dict[str, float]
) -> list[dict[str, Any]]:
    """Write each format and compare what was written with the model. A file that fails is not kept.

    Args:
        images: real ones, uint8 (N, C, H, W), for the comparison; None where there are none.
        metrics: what the file says it reached.

    Returns:
        for each format `format`, `path` in `output`, what `measure_parity` gives, and `error` where it failed; the same
        stands in `export.json`.
    """
    deployed = Deployed.of(model)
    origin = {"package": __package__.split(".")[0], "version": __version__, "run": model.config.get("run_id")}
    described = {
        "data_spec": json.dumps(model.data_spec.to_dict(), ensure_ascii=False),
        "metadata": json.dumps({**origin, "metrics": metrics, "reading": READING}, ensure_ascii=False),
    }
    output.mkdir(parents=True, exist_ok=True)
    records, kept = [], {}
    for name in settings.formats:
        module = written_here()[name]
        path = output / f"model{module.SUFFIX}"
        unfinished = path.with_name(f".unfinished{path.suffix}")
        record: dict[str, Any] = {"format": name, "path": path.name}
        try:
            module.write(deployed, described, unfinished, **({"opset": settings.opset} if name == "onnx" else {}))
            classifier = module.classifier(unfinished)
            record |= measure_parity(deployed, classifier, images)
            if record["max_difference"] > settings.tolerance or not np.isfinite(record["max_difference"]):
                record["error"] = (
                    f"differs from the checkpoint by {record['max_difference']:.2g}, allowed {settings.tolerance:g}"
                )
            else:
                unfinished.replace(path)
                kept[name] = classifier
        except Exception as error:
            log.exception("Export to %s failed.", name)
            record["error"] = f"{type(error).__name__}: {error}"
        finally:
            # A file that gives other answers than its checkpoint must not be there to be shipped.
            unfinished.unlink(missing_ok=True)
        records.append(record)
    report: dict[str, Any] = {"tolerance": settings.tolerance, "exports": records}
    if settings.benchmark:
        report["latency"] = measure_latency(deployed, kept)
        log.info("%s", table(report["latency"]))
    write_json(output / "export.json", report)
    return records
