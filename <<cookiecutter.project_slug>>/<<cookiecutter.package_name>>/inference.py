"""Classifies image files with a checkpoint or an exported file and writes a table.

Imports neither torch nor Hydra by itself: an ONNX file is served without them.
"""

import csv
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from rich.progress import track

from .configuration import ConfigError, find_checkpoint
from .data.images import SUFFIXES, read_image


class Classifier(Protocol):
    data_spec: dict[str, Any]

    def __call__(self, images: np.ndarray) -> np.ndarray:
        """Give probabilities, float32 (N, classes), of uint8 images (N, C, H, W)."""


class CheckpointClassifier:
    def __init__(self, path: Path) -> None:
        from .checkpoints import read_checkpoint

        checkpoint = read_checkpoint(path)
        self.model = checkpoint.build_model()
        self.data_spec = checkpoint.data_spec.to_dict()

    def __call__(self, images: np.ndarray) -> np.ndarray:
        import torch

        with torch.inference_mode():
            return torch.softmax(self.model(torch.from_numpy(images)), dim=1).numpy()


def load_classifier(model: str) -> Classifier:
    """Load a run directory, a checkpoint or an exported file.

    Raises:
        ConfigError: it does not exist or is nothing of these.
    """
    path = Path(model).expanduser()
    if path.suffix == ".onnx" and path.is_file():
        from .export.onnx import OnnxClassifier

        try:
            return OnnxClassifier(path)
        except ValueError as error:
            raise ConfigError(
                f"{path} cannot be used: {error}. An ONNX file written by export.py is allowed."
            ) from error
    if path.is_dir() or (path.suffix == ".ckpt" and path.is_file()):
        return CheckpointClassifier(find_checkpoint(path))
    found = "is of another kind" if path.exists() else "does not exist"
    raise ConfigError(
        f"{path} {found}. A run directory, a checkpoint (.ckpt) or an exported file (.onnx) is allowed. "
        "Try logs/latest/export/model.onnx."
    )


def find_images(inputs: list[str]) -> list[Path]:
    """List files as given and the images in folders, searched through, in order of their names.

    Raises:
        ConfigError: an input does not exist, or there is no image at all.
    """
    found: list[Path] = []
    for given in inputs:
        path = Path(given).expanduser()
        if not path.exists():
            raise ConfigError(f"{path} does not exist. Image files and folders are allowed.")
        found += sorted(_images_below(path)) if path.is_dir() else [path]
    if not found:
        raise ConfigError(f"{', '.join(inputs)} holds no image. Allowed: files ending in {', '.join(SUFFIXES)}.")
    return found


def _images_below(folder: Path) -> Iterator[Path]:
    for path in folder.rglob("*"):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if path.suffix.lower() in SUFFIXES and path.is_file() and not hidden:
            yield path


def predict(model: str, inputs: list[str], output: Path, top_k: int, batch_size: int) -> int:
    """Classify every input and write the table `output`; give the number of images that could be read.

    Raises:
        ConfigError: model, inputs, output or a number are wrong.
    """
    for name, value in {"--top-k": top_k, "--batch-size": batch_size}.items():
        if value < 1:
            raise ConfigError(f"{name} must be at least 1, got {value}. Try {name} 1.")
    if not output.parent.is_dir():
        raise ConfigError(f"The folder {output.parent} does not exist. Try --output predictions.csv.")
    paths = find_images(inputs)
    classifier = load_classifier(model)
    class_names = classifier.data_spec["class_names"]
    columns = range(1, min(top_k, len(class_names)) + 1)
    header = ["path", *(name if k == 1 else f"{name}_{k}" for k in columns for name in ("label", "confidence"))]
    rows: list[list[Any]] = []
    for batch_paths, images in track(
        _batches(paths, classifier.data_spec, batch_size), "classifying", -(-len(paths) // batch_size)
    ):
        for path, probabilities in zip(batch_paths, classifier(images), strict=True):
            best = np.argsort(-probabilities, kind="stable")[: len(columns)]
            rows.append(
                [str(path), *(cell for index in best for cell in (class_names[index], f"{probabilities[index]:.6f}"))]
            )
    unfinished = output.with_name(f".{output.name}.unfinished")
    try:
        # A file name that is not valid UTF-8 keeps its bytes.
        with unfinished.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file:
            csv.writer(file).writerows([header, *rows])
        unfinished.replace(output)
    except OSError as error:
        raise ConfigError(f"{output} cannot be written: {error.strerror}. Try --output predictions.csv.") from error
    print(f"{len(rows)} images classified, {len(paths) - len(rows)} unreadable. Table: {output}")
    return len(rows)


def _batches(paths: list[Path], data_spec: dict[str, Any], batch_size: int) -> Iterator[tuple[list[Path], np.ndarray]]:
    remaining = iter(paths)
    while chunk := list(islice(remaining, batch_size)):
        readable, images = [], []
        for path in chunk:
            try:
                images.append(read_image(path, data_spec["image_size"], data_spec["channels"]))
                readable.append(path)
            except OSError as error:
                print(f"Skipped: {error}", file=sys.stderr)
        if images:
            yield readable, np.stack(images)
