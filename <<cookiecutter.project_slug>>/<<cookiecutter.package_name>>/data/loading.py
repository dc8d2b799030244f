"""Serves whole batches, the same global batches on any number of processes."""

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, Sampler

Batch = tuple[Tensor, Tensor]


class Images(Protocol):
    """What a split has to offer.

    Attributes:
        labels: int64 (N,).
        needs_workers: whether a batch takes so long that other processes should prepare it.
    """

    labels: Tensor
    needs_workers: bool

    def __len__(self) -> int: ...

    def __getitems__(self, indices: list[int]) -> Batch:
        """Give images uint8 (N, C, H, W) and labels int64 (N,); DataLoader looks for this name."""


class InMemoryImages(Dataset[Batch]):
    """Images uint8 (N, C, H, W) with labels int64 (N,)."""

    # A gather from memory takes less time than handing it over from another process.
    needs_workers = False

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images = images
        self.labels = labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Batch:
        return self.images[index], self.labels[index]

    def __getitems__(self, indices: list[int]) -> Batch:
        # Several times faster than `self.images[indices]`.
        chosen = torch.from_numpy(np.array(indices))
        return self.images.index_select(0, chosen), self.labels.index_select(0, chosen)


class SharedBatches(Sampler[list[int]]):
    """Cuts the samples into global batches and gives each process its share, so that no process sees another order.

    For training the order is a function of seed and epoch alone, and an incomplete last batch is left out unless it is
    the only one. Otherwise every sample comes exactly once, without padding, in batches of nearly one size: a process
    with no share in the last one would let the others wait for it.

    Args:
        batch_size: samples of one batch over all processes.
        weights: of each sample, to draw it with replacement for training; None takes every sample once.
        resume_at: epoch and number of its batches that a resumed run has seen already.
    """

    def __init__(
        self,
        length: int,
        batch_size: int,
        rank: int,
        world_size: int,
        seed: int,
        train: bool,
        weights: Tensor | None = None,
        resume_at: tuple[int, int] = (0, 0),
    ) -> None:
        self.length = length
        self.batch_size = batch_size
        self.rank = rank
        self.world_size = world_size
        self.seed = seed
        self.train = train
        self.weights = weights
        self.resume_at = resume_at
        # Worker processes ask for batches before Lightning sets the epoch.
        self.epoch = resume_at[0]

    @property
    def sampler(self) -> "SharedBatches":
        """Lightning calls `set_epoch` on a batch sampler's `sampler`, never on the batch sampler."""
        return self

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        if self.train:
            return max(1, self.length // self.batch_size)
        return min(-(-self.length // self.batch_size), self.length // self.world_size)

    def __iter__(self) -> Iterator[list[int]]:
        order = self._order()
        batches = torch.split(order, self.batch_size) if self.train else order.tensor_split(len(self))
        seen = self.resume_at[1] if self.epoch == self.resume_at[0] else 0
        for batch in batches[seen : len(self)]:
            yield batch[self.rank :: self.world_size].tolist()

    def _order(self) -> Tensor:
        if not self.train:
            return torch.arange(self.length)
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
        if self.weights is None:
            return torch.randperm(self.length, generator=generator)
        # Not torch.multinomial, which takes 2**24 samples at most.
        heights = self.weights.double().cumsum(0)
        points = torch.rand(self.length, dtype=torch.float64, generator=generator) * heights[-1]
        return torch.searchsorted(heights, points, right=True).clamp(max=self.length - 1)


def keep_batch(batch: Any) -> Any:
    """Collate nothing: the dataset served a whole batch."""
    return batch
