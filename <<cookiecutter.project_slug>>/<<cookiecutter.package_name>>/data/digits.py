"""Handwritten digits that ship inside scikit-learn (configs/data/digits.yaml): real data without a download.

`python -m << cookiecutter.package_name >>.data.digits DIR`
writes a few of them as image files to predict on.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_digits

from .checks import check_fraction, check_rest
from .datamodule import ImageDataModule
from .loading import Images, InMemoryImages


def digit_images() -> tuple[np.ndarray, np.ndarray]:
    """Give images uint8 (1797, 1, 8, 8) and labels int64 (1797,).

    Source: UCI "Optical Recognition of Handwritten Digits", whose pixels are counts from 0 to 16.
    """
    digits = load_digits()
    images = np.round(digits.images * 255 / 16).astype(np.uint8)
    return images[:, None], digits.target.astype(np.int64)


@dataclass(kw_only=True, eq=False, repr=False)
class DigitsDataModule(ImageDataModule):
    """
    Attributes:
        val_fraction: of all images.
        test_fraction: of all images.
    """

    test_fraction: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fraction("test_fraction", self.test_fraction)
        check_rest(self.val_fraction, self.test_fraction)

    def read_splits(self) -> tuple[dict[str, Images], tuple[str, ...]]:
        images, labels = digit_images()
        splits: dict[str, Images] = {
            name: InMemoryImages(torch.from_numpy(images[chosen]), torch.from_numpy(labels[chosen]))
            for name, chosen in self.divide(labels, self.test_fraction).items()
        }
        return splits, tuple(str(digit) for digit in range(10))


def write_samples(folder: Path, count: int = 10) -> None:
    """Write `count` digits that the default split keeps for testing as PNG files named by their true label."""
    datamodule = DigitsDataModule(batch_size=64, val_fraction=0.15, test_fraction=0.2)
    datamodule.setup()
    folder.mkdir(parents=True, exist_ok=True)
    for position in range(count):
        images, labels = datamodule.splits["test"].__getitems__([position])
        Image.fromarray(images[0, 0].numpy()).save(folder / f"{position:02d}_is_{labels[0]}.png")
    print(f"{count} digits in {folder}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"Usage: python -m {__package__}.digits DIR")
    write_samples(Path(sys.argv[1]))
