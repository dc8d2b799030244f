"""Handwritten digits that ship inside scikit-learn (configs/data/digits.yaml): real data without a download.

`python -m << cookiecutter.package_name >>.data.digits DIR`
writes a few of them as image files to predict on.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from lightning import LightningDataModule
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch.utils.data import DataLoader

from ..configuration import ConfigError
from .loading import Batch, InMemoryImages, memory_loader
from .spec import DataSpec


def digit_images() -> tuple[np.ndarray, np.ndarray]:
    """Give images uint8 (1797, 1, 8, 8) and labels int64 (1797,).

    Source: UCI "Optical Recognition of Handwritten Digits", whose pixels are counts from 0 to 16.
    """
    digits = load_digits()
    images = np.round(digits.images * 255 / 16).astype(np.uint8)
    return images[:, None], digits.target.astype(np.int64)


class DigitsDataModule(LightningDataModule):
    """
    Args:
        batch_size: samples of one training step over all devices.
        val_fraction: of all images.
        test_fraction: of all images.
        seed: of the order of training batches.
    """

    def __init__(
        self, batch_size: int, val_fraction: float, test_fraction: float, split_seed: int = 0, seed: int = 0
    ) -> None:
        super().__init__()
        if batch_size < 1:
            raise ConfigError(f"data.batch_size must be at least 1, got {batch_size}. Try data.batch_size=64.")
        for name, value in {"val_fraction": val_fraction, "test_fraction": test_fraction}.items():
            if not 0 < value < 1:
                raise ConfigError(f"data.{name} must lie between 0 and 1, got {value}. Try data.{name}=0.15.")
        if val_fraction + test_fraction >= 0.95:
            raise ConfigError(
                f"data.val_fraction and data.test_fraction leave too little to train on: {val_fraction} + "
                f"{test_fraction} must stay below 0.95. Try data.val_fraction=0.15 data.test_fraction=0.2."
            )
        self.batch_size = batch_size
        self.val_fraction = val_fraction
        self.test_fraction = test_fraction
        self.split_seed = split_seed
        self.seed = seed
        self.test_split = "test"  # what trainer.test() serves; evaluation.py sets it
        self.splits: dict[str, InMemoryImages] = {}

    def setup(self, stage: str | None = None) -> None:
        if self.splits:
            return
        images, labels = digit_images()
        positions = {"train": np.arange(len(labels))}
        for name, fraction in {"test": self.test_fraction, "val": self.val_fraction}.items():
            positions["train"], positions[name] = train_test_split(
                positions["train"],
                test_size=round(fraction * len(labels)),
                random_state=self.split_seed,
                stratify=labels[positions["train"]],
            )
        self.splits = {
            name: InMemoryImages(torch.from_numpy(images[chosen]), torch.from_numpy(labels[chosen]))
            for name, chosen in positions.items()
        }
        pixels = self.splits["train"].images.float() / 255
        self.data_spec = DataSpec(
            class_names=tuple(str(digit) for digit in range(10)),
            channels=images.shape[1],
            image_size=images.shape[2],
            mean=(pixels.mean().item(),),
            std=(pixels.std().item(),),
        )

    def train_dataloader(self) -> DataLoader[Batch]:
        return self._loader("train", train=True)

    def val_dataloader(self) -> DataLoader[Batch]:
        return self._loader("val")

    def test_dataloader(self) -> DataLoader[Batch]:
        return self._loader(self.test_split)

    def _loader(self, split: str, train: bool = False) -> DataLoader[Batch]:
        return memory_loader(self.splits[split], self.batch_size, split, self.seed, self.trainer, train)


def write_samples(folder: Path, count: int = 10) -> None:
    """Write `count` digits that the default split keeps for testing as PNG files named by their true label."""
    datamodule = DigitsDataModule(batch_size=64, val_fraction=0.15, test_fraction=0.2)
    datamodule.setup()
    folder.mkdir(parents=True, exist_ok=True)
    for position in range(count):
        image, label = datamodule.splits["test"][position]
        Image.fromarray(image[0].numpy()).save(folder / f"{position:02d}_is_{label}.png")
    print(f"{count} digits in {folder}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"Usage: python -m {__package__}.digits DIR")
    write_samples(Path(sys.argv[1]))
