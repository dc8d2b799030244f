"""MNIST, Fashion-MNIST, CIFAR-10 and CIFAR-100, read by torchvision's own classes and kept in memory."""

import logging
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torchvision import datasets

from .. import configuration
from ..configuration import ConfigError
from .datamodule import ImageDataModule
from .loading import Images, InMemoryImages
from .processes import one_at_a_time

log = logging.getLogger(__name__)

SETS = {
    "mnist": datasets.MNIST,
    "fashion_mnist": datasets.FashionMNIST,
    "cifar10": datasets.CIFAR10,
    "cifar100": datasets.CIFAR100,
}
# What torchvision raises for files that are absent, cut off or altered.
UNUSABLE = (RuntimeError, ValueError, TypeError, LookupError, EOFError, OSError, AssertionError)
# Without a bound a network that swallows packets would stop a run for minutes.
TIMEOUT_S = 30.0


@dataclass(kw_only=True, eq=False, repr=False)
class TorchvisionDataModule(ImageDataModule):
    """
    Attributes:
        root: the folder in which torchvision looks for its own folders; None is data/ in the project.
        val_fraction: of the official training images. The official test images stay the test split.
    """

    name: Literal["mnist", "fashion_mnist", "cifar10", "cifar100"]
    root: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.folder = Path(self.root).expanduser().absolute() if self.root else configuration.PROJECT_ROOT / "data"

    def prepare_data(self) -> None:
        """Download what is missing. A folder that holds the whole set is only read, so it may be read-only.

        Raises:
            ConfigError: files are missing and cannot be downloaded.
        """
        if is_complete(self.name, self.folder):
            return
        try:
            with one_at_a_time(self.folder):
                if not is_complete(self.name, self.folder):
                    log.info("downloading %s to %s", self.name, self.folder)
                    download(self.name, self.folder)
        except UNUSABLE as error:
            raise ConfigError(missing_message(self.name, self.folder, error)) from error

    def read_splits(self) -> tuple[dict[str, Images], tuple[str, ...]]:
        images, labels, class_names = read(self.name, self.folder, train=True)
        test_images, test_labels, _ = read(self.name, self.folder, train=False)
        splits: dict[str, Images] = {
            name: InMemoryImages(images[chosen], labels[chosen])
            for name, chosen in self.divide(labels.numpy(), test_fraction=0.0).items()
        }
        return {**splits, "test": InMemoryImages(test_images, test_labels)}, class_names


def is_complete(name: str, folder: Path) -> bool:
    return all((folder / path).is_file() for path in expected_files(name))


def expected_files(name: str) -> list[str]:
    """Give the files that torchvision reads, relative to its root."""
    kind: Any = SETS[name]
    if issubclass(kind, datasets.MNIST):
        return [f"{kind.__name__}/raw/{archive.removesuffix('.gz')}" for archive, _ in kind.resources]
    files = [file for file, _ in (*kind.train_list, *kind.test_list)]
    return [f"{kind.base_folder}/{file}" for file in (*files, kind.meta["filename"])]


def archives(name: str) -> dict[str, str]:
    """Give where each archive of a set can be downloaded, by its place relative to torchvision's root."""
    kind: Any = SETS[name]
    if issubclass(kind, datasets.MNIST):
        return {f"{kind.__name__}/raw/{archive}": f"{kind.mirrors[0]}{archive}" for archive, _ in kind.resources}
    return {kind.filename: kind.url}


def download(name: str, folder: Path) -> None:
    """Let torchvision download and unpack beside the place, then move whole files in: a kill leaves none half-written.

    Archives that lie there already are not downloaded again.
    """
    unfinished = folder / f".{name}.unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    for archive in archives(name):
        if (folder / archive).is_file():
            (unfinished / archive).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(folder / archive, unfinished / archive)
    with _timeout(TIMEOUT_S):
        SETS[name](unfinished, download=True)
    for file in expected_files(name):
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (unfinished / file).replace(folder / file)
    shutil.rmtree(unfinished)


@contextmanager
def _timeout(seconds: float) -> Iterator[None]:
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


def missing_message(name: str, folder: Path, error: Exception) -> str:
    missing = [file for file in expected_files(name) if not (folder / file).is_file()]
    by_hand = "".join(f"\n  {url} as {folder / archive}" for archive, url in archives(name).items())
    return (
        f"{name} is not complete in {folder}: {', '.join(missing)} missing, and it could not be downloaded: "
        f"{str(error).strip()}\nTry data.root=DIR with a folder that holds these files, or put there by hand (it is "
        f"unpacked by itself):{by_hand}"
    )


def read(name: str, folder: Path, train: bool) -> tuple[torch.Tensor, torch.Tensor, tuple[str, ...]]:
    """Read images uint8 (N, C, H, W), labels int64 (N,) and the names of the classes.

    Raises:
        ConfigError: a file is not what torchvision expects.
    """
    try:
        found: Any = SETS[name](folder, train=train)
        images = torch.as_tensor(np.asarray(found.data))
        labels = torch.as_tensor(found.targets, dtype=torch.int64)
        images = images[:, None] if images.ndim == 3 else images.permute(0, 3, 1, 2).contiguous()
        if len(images) != len(labels):
            raise ValueError(f"{len(images)} images have {len(labels)} labels")
    except UNUSABLE as error:
        damaged = os.path.commonpath(expected_files(name))
        raise ConfigError(
            f"The files of {name} in {folder / damaged} cannot be read: {str(error).strip() or type(error).__name__}. "
            "Delete that folder, and the next run downloads them anew; or try data.root=DIR with whole files."
        ) from error
    return images, labels, tuple(found.classes)
