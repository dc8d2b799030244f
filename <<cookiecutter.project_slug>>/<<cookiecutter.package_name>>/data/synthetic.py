"""Made-up images of any shape and number (configs/data/synthetic.yaml), for benchmarks and trials of memory.

Each class is a random pattern under noise, so that training can be seen to learn.
"""

from dataclasses import dataclass

import torch

from .checks import check_at_least
from .datamodule import ImageDataModule
from .loading import Images, InMemoryImages


@dataclass(kw_only=True, eq=False, repr=False)
class SyntheticDataModule(ImageDataModule):
    """
    Attributes:
        image_size: side of the square images, pixels.
        split_seed: of the patterns and of every image.
    """

    channels: int
    image_size: int
    num_classes: int
    train_samples: int
    val_samples: int
    test_samples: int

    def __post_init__(self) -> None:
        super().__post_init__()
        self.samples = {"train": self.train_samples, "val": self.val_samples, "test": self.test_samples}
        allowed = {"channels": (self.channels, 1), "image_size": (self.image_size, 1)}
        allowed |= {"num_classes": (self.num_classes, 2)}
        allowed |= {f"{split}_samples": (samples, 1) for split, samples in self.samples.items()}
        for name, (value, smallest) in allowed.items():
            check_at_least(name, value, smallest, str(smallest))

    def read_splits(self) -> tuple[dict[str, Images], tuple[str, ...]]:
        shape = (self.channels, self.image_size, self.image_size)
        generator = torch.Generator().manual_seed(self.split_seed)
        # Half of the range for the pattern and half for the noise: their sum stays within a byte.
        patterns = torch.randint(0, 128, (self.num_classes, *shape), dtype=torch.uint8, generator=generator)
        splits: dict[str, Images] = {}
        for split, samples in self.samples.items():
            labels = torch.arange(samples) % self.num_classes
            images = torch.randint(0, 128, (samples, *shape), dtype=torch.uint8, generator=generator)
            images += patterns[labels]
            splits[split] = InMemoryImages(images, labels)
        return splits, tuple(str(number) for number in range(self.num_classes))
