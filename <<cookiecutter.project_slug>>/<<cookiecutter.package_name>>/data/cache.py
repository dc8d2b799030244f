"""Images decoded and resized once, in a file of bytes that later epochs, ranks and runs map into memory."""

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import PIL
import torch
from torch import Tensor
from torch.utils.data import Dataset

from ..configuration import ConfigError
from .images import READING, read_image, unreadable_message
from .loading import Batch
from .processes import in_threads, one_at_a_time

log = logging.getLogger(__name__)


class CachedImages(Dataset[Batch]):
    """Rows of a cache's file, of which only those that are asked for are in memory.

    Args:
        rows: int64 (N,), positions in the file.
        labels: int64 (N,).
    """

    needs_workers = False

    def __init__(self, file: Path, rows: Tensor, labels: Tensor) -> None:
        self.file = file
        self.rows = rows
        self.labels = labels
        # Writable in memory, as torch wants it, but never in the file.
        self.images = torch.from_numpy(np.load(file, mmap_mode="c"))

    def __len__(self) -> int:
        return len(self.labels)

    def __getitems__(self, indices: list[int]) -> Batch:
        chosen = torch.from_numpy(np.array(indices))
        return self.images.index_select(0, self.rows.index_select(0, chosen)), self.labels.index_select(0, chosen)

    def __reduce__(self) -> tuple[type["CachedImages"], tuple[Path, Tensor, Tensor]]:
        # Another process maps the file again instead of being sent its content.
        return CachedImages, (self.file, self.rows, self.labels)


class ImageCache:
    """The cache of one folder at one size, named by what it was made from: paths, sizes, times, the way of reading.

    Args:
        source: the folder or table that names the images.
        paths: of every image, in order.
        size: side of the squares, pixels.
        directory: for the caches of all folders.
    """

    def __init__(self, source: Path, paths: list[Path], size: int, channels: int, directory: Path) -> None:
        self.paths = paths
        self.size = size
        self.shape = (len(paths), channels, size, size)
        self.directory = directory
        rule = f"{source} {size} {channels} {READING} Pillow {PIL.__version__}"
        # When images change, the part behind this does: an entry that has this before it is out of date.
        self.prefix = f"{source.stem}-{size}-{hashlib.sha256(os.fsencode(rule)).hexdigest()[:8]}-"
        self.entry = directory / f"{self.prefix}{self._content()}"
        self.file = self.entry / "images.npy"

    def _content(self) -> str:
        digest = hashlib.sha256()
        for path in self.paths:
            try:
                state = path.stat()
                digest.update(os.fsencode(f"{path}\n{state.st_size} {state.st_mtime_ns}\n"))
            except OSError:
                digest.update(os.fsencode(f"{path}\nmissing\n"))
        return digest.hexdigest()[:16]

    def is_complete(self) -> bool:
        try:
            self.unreadable()
            return bool(np.load(self.file, mmap_mode="r").shape == self.shape)
        except FileNotFoundError:
            return False
        except (OSError, EOFError, ValueError) as error:
            log.warning("the cache %s is damaged and made anew: %s", self.entry, error)
            return False

    def unreadable(self) -> dict[int, str]:
        """Give the positions of files that could not be read, with the reasons."""
        found = json.loads((self.entry / "unreadable.json").read_text(encoding="utf-8"))
        return {int(position): reason for position, reason in found.items()}

    def images(self, rows: list[int], labels: Tensor) -> CachedImages:
        return CachedImages(self.file, torch.tensor(rows), labels)

    def build(self, skip: bool) -> None:
        """Make the cache if it is not there. Of several processes one makes it, and the others wait.

        Args:
            skip: leave the rows of unreadable files black; otherwise the first one is an error.

        Raises:
            ConfigError: a file cannot be read, or the cache cannot be written.
        """
        if self.is_complete():
            if self.unreadable() and not skip:
                raise ConfigError(unreadable_message(next(iter(self.unreadable().values()))))
            return
        needed = int(np.prod(self.shape)) / 1e9
        try:
            with one_at_a_time(self.directory):
                if self.is_complete():
                    return
                for old in self.directory.glob("*.unfinished"):
                    shutil.rmtree(old)
                for old in self.directory.glob(f"{self.prefix}*"):
                    shutil.rmtree(old)
                free = shutil.disk_usage(self.directory).free / 1e9
                about = (len(self.paths), self.size, needed, free)
                log.info("cache: %d images at %d pixels need %.2f of %.2f GB that are free", *about)
                if needed > free:
                    raise OSError(f"only {free:.2f} GB are free")
                self._write(skip)
        except OSError as error:
            raise ConfigError(
                f"The cache cannot be written to {self.directory}, where it needs {needed:.2f} GB: "
                f"{error.strerror or error}. Try data.cache_dir=DIR on a disk with room, or data.cache=false."
            ) from error

    def _write(self, skip: bool) -> None:
        unfinished = self.directory / f"{self.entry.name}.unfinished"
        unfinished.mkdir()
        unreadable: dict[int, str] = {}
        try:
            with (unfinished / "images.npy").open("wb") as file:
                header = {"descr": "|u1", "fortran_order": False, "shape": self.shape}
                np.lib.format.write_array_header_1_0(file, header)
                for position, image in enumerate(self._read()):
                    if isinstance(image, OSError):
                        if not skip:
                            raise ConfigError(unreadable_message(str(image)))
                        unreadable[position] = str(image)
                        image = np.zeros(self.shape[1:], dtype=np.uint8)
                    # Not into a mapped file: where the disk is full, that would end the process without a word.
                    file.write(image.tobytes())
                file.flush()
                os.fsync(file.fileno())
            (unfinished / "unreadable.json").write_text(json.dumps(unreadable), encoding="utf-8")
            unfinished.rename(self.entry)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)

    def _read(self) -> Iterator[np.ndarray | OSError]:
        def read(path: Path) -> np.ndarray | OSError:
            try:
                return read_image(path, self.size, self.shape[1])
            except OSError as error:
                return error

        return in_threads(read, self.paths, "preparing images")
