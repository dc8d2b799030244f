"""Made-up images of any shape and number (configs/data/synthetic.yaml), for benchmarks and trials of memory.

Each class is a random pattern under noise, so that training can be seen to learn.
"""

import torch
from lightning import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader

from ..configuration import ConfigError
from .loading import Batch, InMemoryImages, memory_loader
from .spec import DataSpec


class SyntheticDataModule(LightningDataModule):
    """
    Args:
        image_size: side of the square images, pixels.
        batch_size: samples of one training step over all devices.
        split_seed: of the patterns and of every image.
        seed: of the order of training batches.
    """

    def __init__(
        self,
        channels: int,
        image_size: int,
        num_classes: int,
        train_samples: int,
        val_samples: int,
        test_samples: int,
        batch_size: int,
        split_seed: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.samples = {"train": train_samples, "val": val_samples, "test": test_samples}
        allowed = {"channels": (channels, 1), "image_size": (image_size, 1), "num_classes": (num_classes, 2)}
        allowed |= {f"{split}_samples": (samples, 1) for split, samples in self.samples.items()}
        allowed |= {"batch_size": (batch_size, 1)}
        for name, (value, smallest) in allowed.items():
            if value < smallest:
                raise ConfigError(f"data.{name} must be at least {smallest}, got {value}. Try data.{name}={smallest}.")
        self.channels = channels
        self.image_size = image_size
        self.num_classes = num_classes
        self.batch_size = batch_size
        self.split_seed = split_seed
        self.seed = seed
        self.test_split = "test"  # what trainer.test() serves; evaluation.py sets it
        self.splits: dict[str, InMemoryImages] = {}

    def setup(self, stage: str | None = None) -> None:
        if self.splits:
            return
        shape = (self.channels, self.image_size, self.image_size)
        generator = torch.Generator().manual_seed(self.split_seed)
        # Half of the range for the pattern and half for the noise: their sum stays within a byte.
        patterns = torch.randint(0, 128, (self.num_classes, *shape), dtype=torch.uint8, generator=generator)
        for split, samples in self.samples.items():
            labels = torch.randint(0, self.num_classes, (samples,), generator=generator)
            images = torch.randint(0, 128, (samples, *shape), dtype=torch.uint8, generator=generator)
            images += patterns[labels]
            self.splits[split] = InMemoryImages(images, labels)
        mean, std = mean_and_std(self.splits["train"].images)
        self.data_spec = DataSpec(
            class_names=tuple(str(number) for number in range(self.num_classes)),
            channels=self.channels,
            image_size=self.image_size,
            mean=mean,
            std=std,
        )

    def train_dataloader(self) -> DataLoader[Batch]:
        return self._loader("train", train=True)

    def val_dataloader(self) -> DataLoader[Batch]:
        return self._loader("val")

    def test_dataloader(self) -> DataLoader[Batch]:
        return self._loader(self.test_split)

    def _loader(self, split: str, train: bool = False) -> DataLoader[Batch]:
        return memory_loader(self.splits[split], self.batch_size, split, self.seed, self.trainer, train)


def mean_and_std(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Give mean and deviation of each channel of images uint8 (N, C, H, W), on the scale 0 to 1."""
    total, squares = torch.zeros(2, images.shape[1], dtype=torch.float64)
    # In pieces: all images as floats would take four times their memory.
    for piece in torch.split(images, 1024):
        pixels = piece.float()
        total += pixels.sum((0, 2, 3), dtype=torch.float64)
        squares += pixels.square_().sum((0, 2, 3), dtype=torch.float64)
    mean = total * images.shape[1] / images.numel()
    std = (squares * images.shape[1] / images.numel() - mean**2).sqrt()
    return tuple((mean / 255).tolist()), tuple((std / 255).tolist())
