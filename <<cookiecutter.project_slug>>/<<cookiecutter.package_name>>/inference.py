"""Classifies image files with a checkpoint or an exported file and writes a table.

Imports neither torch nor Hydra by itself: an ONNX file is served without them.
"""

import csv
import glob
import json
import os
import pkgutil
import sys
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from itertools import chain, islice
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import numpy as np

from .configuration import ConfigError, find_checkpoint
from .data.images import SUFFIXES, read_image
from .data.listing import is_shown

# Of tables, and what becomes of a name that is not valid UTF-8: it keeps its bytes, but in JSON it is escaped.
KINDS = {"csv": "surrogateescape", "jsonl": "backslashreplace"}
# Paths, and their images as uint8 (N, C, H, W).
Batch = tuple[list[Path], np.ndarray]


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


def formats() -> dict[str, ModuleType]:
    """Give the modules in `export/formats` by their names; none where that room was deleted."""
    folder = Path(__file__).parent / "export" / "formats"
    names = [module.name for module in pkgutil.iter_modules([str(folder)])]
    return {name: import_module(f"{__package__}.export.formats.{name}") for name in names}


def load_classifier(model: str) -> Classifier:
    """Load a run directory, a checkpoint or an exported file.

    Raises:
        ConfigError: it does not exist or is nothing of these, or a package is missing that reads it.
    """
    path = Path(model).expanduser()
    exported = {module.SUFFIX: module for module in formats().values()}
    if path.is_file() and path.suffix in exported:
        try:
            classifier: Classifier = exported[path.suffix].classifier(path)
            return classifier
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"{path} needs {error.name}, not installed here. Try pip install {error.name}."
            ) from error
        except ValueError as error:
            raise ConfigError(
                f"{path} cannot be used: {error}. A {path.suffix} file written by export.py is allowed. "
                "Try python export.py checkpoint=logs/latest."
            ) from error
    if path.is_dir() or (path.suffix == ".ckpt" and path.is_file()):
        return CheckpointClassifier(find_checkpoint(path))
    found = "is of another kind" if path.exists() else "does not exist"
    kinds = ["A run directory", "a checkpoint (.ckpt)", *(f"an exported file ({suffix})" for suffix in exported)]
    raise ConfigError(f"{path} {found}. Allowed: {', '.join(kinds)}. Try logs/latest.")


def find_images(inputs: list[str]) -> list[Path]:
    """List what is meant by files, folders (searched through), patterns and `-`, a list on standard input.

    Files keep the order in which they were typed; those of a folder or pattern are sorted.

    Raises:
        ConfigError: an input does not exist, or there is no image at all.
    """
    found: list[Path] = []
    for given in inputs:
        if given == "-":
            lines = os.fsdecode(sys.stdin.buffer.read()).replace("\r\n", "\n").split("\n")
            listed = [Path(line) for line in lines if line]
        elif Path(given).expanduser().exists():
            listed = [Path(given).expanduser()]
        else:
            # A pattern that the shell did not expand; unlike Path.glob it may be absolute.
            matches = glob.glob(str(Path(given).expanduser()), recursive=True)  # noqa: PTH207
            listed = [Path(match) for match in sorted(matches)]
            if not listed:
                raise ConfigError(
                    f"{given} does not exist. Image files, folders, patterns such as 'images/*.png' and -, a list on "
                    "standard input, are allowed. Try python predict.py logs/latest IMAGES."
                )
        for path in listed:
            found += sorted(_images_below(path)) if path.is_dir() else [path]
    if not found:
        raise ConfigError(
            f"{', '.join(inputs)} holds no image. Allowed: files ending in {', '.join(SUFFIXES)}. "
            "Try another folder, or a file's own name."
        )
    return found


def _images_below(folder: Path) -> Iterator[Path]:
    for path in folder.rglob("*"):
        if path.suffix.lower() in SUFFIXES and path.is_file() and all(map(is_shown, path.relative_to(folder).parts)):
            yield path


def predict(
    model: str, inputs: list[str], output: Path | None, kind: str | None, top_k: int, batch_size: int
) -> tuple[int, int]:
    """Classify every input and write a table; give the numbers of images that could and could not be read.

    Args:
        kind: `csv` or `jsonl`; by default the output's suffix decides.

    Raises:
        ConfigError: model, inputs, output or a number are wrong.
    """
    for name, value in {"--top-k": top_k, "--batch-size": batch_size}.items():
        if value < 1:
            raise ConfigError(f"{name} must be at least 1, got {value}. Try {name} 1.")
    output = output or Path(f"predictions.{kind or 'csv'}")
    kind = kind or output.suffix.removeprefix(".")
    if kind not in KINDS:
        raise ConfigError(
            f"{output} does not say what to write. Allowed: {', '.join(f'.{known}' for known in KINDS)}, or any name "
            f"with --format. Try --output {output.with_suffix('.csv').name}."
        )
    paths = find_images(inputs)
    classifier = load_classifier(model)
    class_names = classifier.data_spec["class_names"]
    columns = range(1, min(top_k, len(class_names)) + 1)
    header = ["path", *(name if k == 1 else f"{name}_{k}" for k in columns for name in ("label", "confidence"))]
    classified = 0
    with _table(output, kind, header) as write:
        batches = _batches(paths, classifier.data_spec, batch_size)
        for batch_paths, images in _with_progress(batches, -(-len(paths) // batch_size)):
            for path, probabilities in zip(batch_paths, classifier(images) if batch_paths else (), strict=True):
                best = np.argsort(-probabilities, kind="stable")[: len(columns)]
                named = ((class_names[index], round(float(probabilities[index]), 6)) for index in best)
                write([str(path), *chain.from_iterable(named)])
            classified += len(batch_paths)
    print(f"{classified} images classified, {len(paths) - classified} unreadable. Table: {output}")
    return classified, len(paths) - classified


def _with_progress(batches: Iterator[Batch], total: int) -> Iterator[Batch]:
    if not sys.stderr.isatty():
        return batches
    # Only where somebody sees it: its import would take a good part of a short command's time.
    from rich.console import Console
    from rich.progress import track

    return iter(track(batches, "classifying", total=total, console=Console(stderr=True)))


@contextmanager
def _table(output: Path, kind: str, header: list[str]) -> Iterator[Callable[[list[Any]], object]]:
    """Give a function that writes a row. The table has its name once it is whole."""
    unfinished = output.with_name(f".{output.name}.unfinished")
    try:
        if output.exists() and not output.is_file():
            raise OSError(0, "it is a folder or a device")
        file = unfinished.open("w", newline="", encoding="utf-8", errors=KINDS[kind])
    except OSError as error:
        raise ConfigError(
            f"{output} cannot be written: {error.strerror}. A file in a folder that exists and that you may write to "
            "is allowed. Try --output predictions.csv."
        ) from error
    try:
        with file:
            if kind == "csv":
                rows = csv.writer(file)
                rows.writerow(header)
                yield rows.writerow
            else:
                yield lambda row: file.write(json.dumps(dict(zip(header, row, strict=True)), ensure_ascii=False) + "\n")
        unfinished.replace(output)
    finally:
        unfinished.unlink(missing_ok=True)


def _batches(paths: list[Path], data_spec: dict[str, Any], batch_size: int) -> Iterator[Batch]:
    """Give each batch of paths less those that cannot be read, which are reported, with their images."""
    read = zip(paths, _read_ahead(paths, data_spec, 2 * batch_size), strict=True)
    while chunk := list(islice(read, batch_size)):
        for _, image in chunk:
            if isinstance(image, OSError):
                print(f"Skipped: {image}", file=sys.stderr)
        readable = [(path, image) for path, image in chunk if not isinstance(image, OSError)]
        yield [path for path, _ in readable], np.stack([image for _, image in readable] or [np.empty(0)])


def _read_ahead(paths: list[Path], data_spec: dict[str, Any], ahead: int) -> Iterator[np.ndarray | OSError]:
    """Read images in background threads, `ahead` of them before they are asked for, and give them in order."""

    def read(path: Path) -> np.ndarray | OSError:
        try:
            return read_image(path, data_spec["image_size"], data_spec["channels"])
        except OSError as error:
            return error

    # Pillow lets other threads run while it decodes and resizes.
    pool = ThreadPoolExecutor(os.cpu_count())
    try:
        remaining = iter(paths)
        waiting = deque(pool.submit(read, path) for path in islice(remaining, ahead))
        while waiting:
            yield waiting.popleft().result()
            waiting.extend(pool.submit(read, path) for path in islice(remaining, 1))
    finally:
        pool.shutdown(cancel_futures=True)
