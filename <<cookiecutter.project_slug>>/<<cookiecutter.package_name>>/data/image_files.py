"""People's own image files, in folders of classes or listed in a table (configs/data/image_folder.yaml, csv.yaml)."""

import logging
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from rich.progress import track
from torch import Tensor
from torch.utils.data import Dataset

from ..configuration import ConfigError
from .checks import check_at_least, check_rest
from .datamodule import ImageDataModule
from .images import read_image
from .listing import SKIPPED, LabelledFile, list_folder, read_index, split_like, write_index
from .loading import Batch, Images
from .processes import cores

log = logging.getLogger(__name__)


class UnreadableImageError(ConfigError):
    """A file that cannot be read. Raised in a worker, it comes back with the worker's traceback before the message."""

    def __init__(self, message: str) -> None:
        super().__init__(message.rpartition(f"{type(self).__name__}: ")[2].strip())


class ImageFiles(Dataset[Batch]):
    """Reads files when they are asked for.

    Args:
        labels: int64 (N,).
        size: side of the squares that are read, pixels.
    """

    needs_workers = True

    def __init__(self, root: Path, paths: list[str], labels: Tensor, size: int, channels: int) -> None:
        self.root = root
        # One array: of a list of text every worker would copy each page on which it counts a reference.
        self.paths = np.array([os.fsencode(path) for path in paths], dtype=np.bytes_)
        self.labels = labels
        self.size = size
        self.channels = channels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitems__(self, indices: list[int]) -> Batch:
        try:
            images = [
                read_image(self.root / os.fsdecode(self.paths[index]), self.size, self.channels) for index in indices
            ]
        except OSError as error:
            raise UnreadableImageError(f"{error}. Replace or remove the file, or try data.on_error=skip.") from error
        return torch.from_numpy(np.stack(images)), self.labels[indices]


@dataclass(kw_only=True, eq=False, repr=False)
class ImageFilesDataModule(ImageDataModule):
    """
    Attributes:
        root: the folder of images, or what paths in `index` are relative to.
        index: a table with the columns path, label and, where wanted, split; None takes the folders below `root`.
        image_size: side of the square that the model sees, pixels.
        read_size: side of the square from which augmentation cuts it for training; None is `image_size`.
        val_fraction: of all images without a split of their own, like `test_fraction`.
        test_fraction: 0 keeps none for testing. Not used where files say which ones are for validation or testing.
        on_error: what to do about a file that cannot be read.
    """

    root: str | None = None
    index: str | None = None
    image_size: int = 224
    read_size: int | None = None
    channels: int = 3
    test_fraction: float = 0.15
    on_error: Literal["raise", "skip"] = "raise"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.root and not self.index:
            raise ConfigError("data.root was not given. The folder of your images is allowed. Try data.root=DIR.")
        self.index_file = Path(self.index).expanduser().absolute() if self.index else None
        self.folder = Path(self.root).expanduser().absolute() if self.root else Path(str(self.index_file)).parent
        check_at_least("image_size", self.image_size, 1, "224")
        check_rest(self.val_fraction, self.test_fraction)
        self.crop_from = self.read_size or self.image_size
        if self.crop_from < self.image_size:
            raise ConfigError(
                f"data.read_size={self.crop_from} is smaller than data.image_size={self.image_size}, which is cut from "
                f"it. Try data.read_size={round(self.image_size * 8 / 7)}."
            )
        if self.channels not in (1, 3):
            raise ConfigError(f"data.channels must be 1 for grey or 3 for colour, got {self.channels}.")
        self.recorded: list[LabelledFile] | None = None
        self.files: list[LabelledFile] = []

    def list_files(self) -> list[LabelledFile]:
        """List every file; files of a recorded split come with their splits.

        Raises:
            ConfigError: there are none, or files of the recorded split are gone.
        """
        listed = read_index(self.index_file) if self.index_file else list_folder(self.folder)
        return listed if self.recorded is None else split_like(self.recorded, listed, self.folder)

    def read_splits(self) -> tuple[dict[str, Images], tuple[str, ...]]:
        self.files = self._decide(self._without_unreadable(self.list_files()))
        class_names = check_classes(self.files)
        numbers = {name: number for number, name in enumerate(class_names)}
        splits: dict[str, Images] = {}
        for split in sorted({file.split for file in self.files} - {SKIPPED}):
            chosen = [file for file in self.files if file.split == split]
            labels = torch.tensor([numbers[file.label] for file in chosen])
            size = self.crop_from if split == "train" else self.image_size
            splits[split] = ImageFiles(self.folder, [file.path for file in chosen], labels, size, self.channels)
        return splits, class_names

    def _without_unreadable(self, files: list[LabelledFile]) -> list[LabelledFile]:
        """Mark the files that cannot be read as skipped, if that is asked for and no run has done so before."""
        paths = [self.folder / file.path for file in files]
        if self.on_error == "raise":
            # A file that is gone is found out now and not hours later.
            if gone := [path for path in paths if not path.is_file()]:
                raise ConfigError(
                    f"{len(gone)} of {len(files)} files do not exist or are links to nothing, such as {gone[0]}. "
                    "Remove them, or try data.on_error=skip."
                )
            return files
        if any(file.split == SKIPPED for file in files):
            return files
        errors = in_threads(lambda path: reading_error(path, self.image_size), paths, "checking images")
        bad = [error for error in errors if error]
        if bad:
            log.warning("%d of %d files cannot be read and are skipped:\n%s", len(bad), len(files), "\n".join(bad[:10]))
        return [file._replace(split=SKIPPED) if error else file for file, error in zip(files, errors, strict=True)]

    def _decide(self, files: list[LabelledFile]) -> list[LabelledFile]:
        """Give every file its split: its own, or one that is drawn from those without."""
        given = {file.split for file in files}
        if "val" in given and self.n_folds is not None and self.recorded is None:
            raise ConfigError(
                f"data.n_folds={self.n_folds} divides the training images, but {self.index_file or self.folder} sets "
                "files apart for validation. Try data.n_folds=null, or give them no split."
            )
        pool = [position for position, file in enumerate(files) if file.split in ("", "train")]
        labels = np.unique([files[position].label for position in pool], return_inverse=True)[1]
        decided = list(files)
        test_fraction = 0.0 if given & {"val", "test"} else self.test_fraction
        for split, positions in self.divide(labels, test_fraction, validate="val" not in given).items():
            for position in positions:
                decided[pool[position]] = files[pool[position]]._replace(split=split)
        if not any(file.split == "test" for file in decided):
            log.warning("no images are kept for testing")
        return decided

    def write_split(self, run_dir: Path) -> None:
        write_index(run_dir / "split.csv", self.files)

    def read_split(self, run_dir: Path) -> None:
        recorded = run_dir / "split.csv"
        self.recorded = read_index(recorded) if recorded.is_file() else None


def check_classes(files: list[LabelledFile]) -> tuple[str, ...]:
    """Give the classes of the training split, in order of their names.

    Raises:
        ConfigError: another split has classes of its own, or a name is no text.
    """
    class_names = tuple(sorted({file.label for file in files if file.split == "train"}))
    for file in files:
        if file.split in ("val", "test") and file.label not in class_names:
            raise ConfigError(
                f"No training image shows {file.label}, but {file.path} of the {file.split} split does. There are "
                f"training images of: {', '.join(class_names[:20]) or 'nothing'}. Add some of it, or remove the file."
            )
    for name in class_names:
        if not name.isprintable():
            raise ConfigError(f"The class name {name!r} is not valid UTF-8 text. Rename it.")
    return class_names


def reading_error(path: Path, size: int) -> str | None:
    try:
        read_image(path, size, channels=1)
    except OSError as error:
        return str(error)
    return None


def in_threads(task: Callable[[Any], Any], items: Iterable[Any], title: str) -> list[Any]:
    """Do what lets other threads run meanwhile, as decoding an image does, on all cores; show how far it is."""
    items = list(items)
    with ThreadPoolExecutor(cores()) as threads:
        return list(track(threads.map(task, items), title, len(items)))
