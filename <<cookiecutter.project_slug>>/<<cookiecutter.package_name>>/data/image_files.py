"""People's own image files, in folders of classes or listed in a table (configs/data/image_folder.yaml, csv.yaml)."""

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from .. import configuration
from ..configuration import ConfigError
from .checks import check_at_least, check_rest
from .datamodule import ImageDataModule
from .images import read_image, unreadable_message
from .listing import SKIPPED, LabelledFile, list_folder, read_index, split_like, write_index
from .loading import Batch, Images
from .processes import in_threads

if TYPE_CHECKING:
    from .cache import ImageCache

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
            raise UnreadableImageError(unreadable_message(str(error))) from error
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
        cache: decode and resize once, and serve from a file that is mapped into memory.
        cache_dir: for the caches of all folders; None is data/cache/ in the project.
    """

    root: str | None = None
    index: str | None = None
    image_size: int = 224
    read_size: int | None = None
    channels: int = 3
    test_fraction: float = 0.15
    on_error: Literal["raise", "skip"] = "raise"
    cache: bool = False
    cache_dir: str | None = None

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

    def read_splits(self) -> tuple[dict[str, Images], tuple[str, ...]]:
        listed = read_index(self.index_file) if self.index_file else list_folder(self.folder)
        # A run's own split, if it recorded one.
        files = listed if self.recorded is None else split_like(self.recorded, listed, self.folder)
        if self.on_error == "raise":
            refuse_missing(self.folder, files)
        caches = self._caches(listed) if self.cache else {}
        if self.on_error == "skip" and not any(file.split == SKIPPED for file in files):
            reasons = caches[self.image_size].unreadable() if caches else self._unreadable(listed)
            files = skip(files, {listed[row].path: reason for row, reason in reasons.items()})
        self.files = self._decide(files)
        class_names = check_classes(self.files)
        numbers = {name: number for number, name in enumerate(class_names)}
        rows = {file.path: row for row, file in enumerate(listed)}
        splits: dict[str, Images] = {}
        for split in sorted({file.split for file in self.files} - {SKIPPED}):
            paths = [file.path for file in self.files if file.split == split]
            labels = torch.tensor([numbers[file.label] for file in self.files if file.split == split])
            size = self.crop_from if split == "train" else self.image_size
            if caches:
                splits[split] = caches[size].images([rows[path] for path in paths], labels)
            else:
                splits[split] = ImageFiles(self.folder, paths, labels, size, self.channels)
        return splits, class_names

    def _caches(self, listed: list[LabelledFile]) -> dict[int, "ImageCache"]:
        """Give the cache of every size that is read."""
        from .cache import ImageCache

        directory = configuration.PROJECT_ROOT / "data" / "cache"
        if self.cache_dir:
            directory = Path(self.cache_dir).expanduser().absolute()
        paths = [self.folder / file.path for file in listed]
        caches = {}
        for size in {self.crop_from, self.image_size}:
            caches[size] = ImageCache(self.index_file or self.folder, paths, size, self.channels, directory)
            caches[size].build(skip=self.on_error == "skip")
        return caches

    def _unreadable(self, listed: list[LabelledFile]) -> dict[int, str]:
        """Give the positions of files that cannot be read, with the reasons."""

        def reason(file: LabelledFile) -> str | None:
            try:
                read_image(self.folder / file.path, self.image_size, self.channels)
            except OSError as error:
                return str(error)
            return None

        reasons = enumerate(in_threads(reason, listed, "checking images"))
        return {row: found for row, found in reasons if found is not None}

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


def refuse_missing(folder: Path, files: list[LabelledFile]) -> None:
    """
    Raises:
        ConfigError: a file is gone. It is found out now and not hours later.
    """
    if gone := [file for file in files if file.split != SKIPPED and not (folder / file.path).is_file()]:
        raise ConfigError(
            f"{len(gone)} of {len(files)} files do not exist or are links to nothing, such as {folder / gone[0].path}. "
            "Remove them, or try data.on_error=skip."
        )


def skip(files: list[LabelledFile], reasons: dict[str, str]) -> list[LabelledFile]:
    """Mark the files for which there is a reason as skipped, and say so."""
    if reasons:
        lines = "\n".join([*list(reasons.values())[:10], *["..."] * (len(reasons) > 10)])
        log.warning("%d of %d files cannot be read and are skipped:\n%s", len(reasons), len(files), lines)
    return [file._replace(split=SKIPPED) if file.path in reasons else file for file in files]
