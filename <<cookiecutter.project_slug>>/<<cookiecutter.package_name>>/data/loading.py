"""Serves whole batches from memory, the same global batches on any number of processes."""

import logging
from collections.abc import Iterator
from typing import Any

import torch
from lightning import Trainer
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from ..configuration import ConfigError

log = logging.getLogger(__name__)
Batch = tuple[Tensor, Tensor]


class InMemoryImages(Dataset[Batch]):
    """Images uint8 (N, C, H, W) with labels int64 (N,)."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images = images
        self.labels = labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Batch:
        return self.images[index], self.labels[index]

    def __getitems__(self, indices: list[int]) -> Batch:
        """Serve a whole batch in one gather; DataLoader looks for this name."""
        chosen = torch.as_tensor(indices)
        return self.images[chosen], self.labels[chosen]


class SharedBatches(Sampler[list[int]]):
    """Cuts the samples into global batches and gives each process its share, so that no process sees another order.

    For training the order is a function of seed and epoch alone, and an incomplete last batch is left out unless it is
    the only one. Otherwise every sample comes exactly once, without padding.

    Args:
        batch_size: samples of one batch over all processes.
    """

    def __init__(self, length: int, batch_size: int, rank: int, world_size: int, seed: int, train: bool) -> None:
        self.length = length
        self.batch_size = batch_size
        self.rank = rank
        self.world_size = world_size
        self.seed = seed
        self.train = train
        self.epoch = 0

    @property
    def sampler(self) -> "SharedBatches":
        """Lightning calls `set_epoch` on a batch sampler's `sampler`, never on the batch sampler."""
        return self

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        whole, rest = divmod(self.length, self.batch_size)
        return whole + int(rest > 0 and (not self.train or whole == 0))

    def __iter__(self) -> Iterator[list[int]]:
        order = torch.arange(self.length)
        if self.train:
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
            order = torch.randperm(self.length, generator=generator)
        for batch in torch.split(order, self.batch_size)[: len(self)]:
            yield batch[self.rank :: self.world_size].tolist()


def keep_batch(batch: Any) -> Any:
    """Collate nothing: the dataset served a whole batch."""
    return batch


def memory_loader(
    dataset: InMemoryImages, batch_size: int, split: str, seed: int, trainer: Trainer | None, train: bool = False
) -> DataLoader[Batch]:
    """Serve this process's share of a split.

    Args:
        batch_size: over all processes; rounded down to one that they can share equally.

    Raises:
        ConfigError: there are fewer images, or a smaller batch, than processes.
    """
    world_size, rank = (trainer.world_size, trainer.global_rank) if trainer else (1, 0)
    shared = batch_size - batch_size % world_size
    if shared == 0 or len(dataset) < world_size:
        raise ConfigError(
            f"{world_size} processes cannot share the {split} split of {len(dataset)} images in batches of "
            f"{batch_size}: each needs at least one. Try trainer.devices={min(batch_size, len(dataset))}."
        )
    if shared != batch_size and rank == 0 and train:
        log.info("data.batch_size=%d does not divide by %d processes: using %d", batch_size, world_size, shared)
    batches = SharedBatches(len(dataset), shared, rank, world_size, seed, train)
    # No workers: a gather from memory takes less time than handing it over from another process.
    return DataLoader(dataset, batch_sampler=batches, collate_fn=keep_batch)
