"""How many images a second a folder supplies for training, in its second epoch and without a model.

`python supply.py PROJECT PACKAGE FOLDER WAY WORKERS` prints images/s. WAY is `classic`, torchvision as it is usually
written; or of the project `files`, `cache`, or `augmented`: the cache, and augmentation on the CPU.
"""

import sys
from collections.abc import Callable
from importlib import import_module
from itertools import chain
from time import perf_counter
from typing import Any

from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder

SIZE, READ_SIZE, BATCH = 224, 256, 64


def classic(folder: str, workers: int) -> Any:
    """Give torchvision's usual loader of a folder."""
    transform = transforms.Compose(
        [
            transforms.RandomResizedCrop(SIZE),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ]
    )
    options = {"num_workers": workers, "persistent_workers": workers > 0}
    return DataLoader(ImageFolder(folder, transform), BATCH, shuffle=True, drop_last=True, **options)


def ours(project: str, package: str, folder: str, way: str, workers: str) -> tuple[Any, Callable[[Any], Any]]:
    """Give the project's loader of a folder, and what it does with each batch."""
    sys.path.insert(0, project)
    image_files = import_module(f"{package}.data.image_files")
    augment = import_module(f"{package}.data.augmentation").augment
    settings = {"batch_size": BATCH, "image_size": SIZE, "val_fraction": 0.05, "test_fraction": 0.0}
    settings |= {"num_workers": workers if workers == "auto" else int(workers)}
    settings |= {"cache": way != "files", "read_size": READ_SIZE if way == "augmented" else SIZE}
    datamodule = image_files.ImageFilesDataModule(root=folder, **settings)
    datamodule.setup()
    if way == "augmented":
        return datamodule.train_dataloader(), lambda images: augment(images, SIZE, "light", flip=True)
    return datamodule.train_dataloader(), lambda images: images


def main(project: str, package: str, folder: str, way: str, workers: str) -> None:
    batches, change = (
        (classic(folder, int(workers)), lambda images: images)
        if way == "classic"
        else ours(project, package, folder, way, workers)
    )
    # A cache serves an epoch in a moment: more of them make the figure steadier.
    epochs = 10 if way == "cache" else 1
    for _ in batches:
        pass
    started, supplied = perf_counter(), 0
    for images, _ in chain.from_iterable(batches for _ in range(epochs)):
        supplied += len(change(images))
    print(supplied / (perf_counter() - started))


if __name__ == "__main__":
    main(*sys.argv[1:])
