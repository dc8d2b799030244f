"""What every data module shares: settings, checks, loaders, balance. A data module of its own adds `read_splits`."""

import logging
import random
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from lightning import LightningDataModule
from torch import Tensor, nn
from torch.utils.data import DataLoader

from ..configuration import ConfigError
from .augmentation import STRENGTHS, augment
from .checks import check_at_least, check_fraction, check_splits
from .loading import Batch, Images, InMemoryImages, SharedBatches, keep_batch
from .processes import cores
from .spec import DataSpec
from .splitting import Positions, split_off
from .statistics import mean_and_std

log = logging.getLogger(__name__)

MOST_WORKERS = 16
# Of more images, mean and deviation would not come out differently.
MEASURED_FILES = 1000


@dataclass(kw_only=True, eq=False, repr=False)
class ImageDataModule(LightningDataModule, ABC):
    """
    Attributes:
        batch_size: samples of one training step over all devices.
        val_fraction: of the images that are not kept for testing.
        n_folds: cut those images into so many equal parts and validate on part `fold`, instead of `val_fraction`.
        split_seed: of what goes into which split.
        seed: of the order of training batches.
        augment: none, light or strong changes of training images; see augmentation.py.
        flip: let augmentation mirror images.
        balance: draw every class equally often for training.
        num_workers: processes on each device that prepare batches.
        splits: filled by `setup`, like `data_spec`.
        test_split: what trainer.test() serves; evaluation.py sets it.
    """

    batch_size: int
    val_fraction: float = 0.15
    n_folds: int | None = None
    fold: int = 0
    split_seed: int = 0
    seed: int = 0
    augment: str = "none"
    flip: bool = False
    balance: bool = False
    num_workers: int | Literal["auto"] = "auto"
    pin_memory: bool | Literal["auto"] = "auto"

    def __post_init__(self) -> None:
        super().__init__()
        self.splits: dict[str, Images] = {}
        self.data_spec: DataSpec
        self.test_split = "test"
        self._resume_at = (0, 0)
        check_at_least("batch_size", self.batch_size, 1, "64")
        check_at_least("split_seed", self.split_seed, 0, "0")
        if self.num_workers != "auto":
            check_at_least("num_workers", self.num_workers, 0, "auto")
        check_fraction("val_fraction", self.val_fraction)
        if self.augment not in STRENGTHS:
            raise ConfigError(
                f"data.augment={self.augment} does not exist. Allowed: {', '.join(STRENGTHS)}. Try data.augment=light."
            )
        if self.n_folds is not None:
            check_at_least("n_folds", self.n_folds, 2, "5")
            if not 0 <= self.fold < self.n_folds:
                raise ConfigError(
                    f"data.fold must lie between 0 and {self.n_folds - 1} (data.n_folds={self.n_folds}), "
                    f"got {self.fold}. Try data.fold=0."
                )

    @abstractmethod
    def read_splits(self) -> tuple[dict[str, Images], tuple[str, ...]]:
        """Give the splits train, val and, where there is one, test, and the names of the classes."""

    def setup(self, stage: str | None = None) -> None:
        if self.splits:
            return
        splits, class_names = self.read_splits()
        check_splits(splits, class_names)
        self.splits = splits
        (channels, image_size, _), (mean, std) = self._measure()
        self.data_spec = DataSpec(class_names, channels, image_size, mean, std)

    def _measure(self) -> tuple[torch.Size, tuple[tuple[float, ...], tuple[float, ...]]]:
        """Give the shape of an evaluated image, and mean and deviation of the training pixels."""
        train = self.splits["train"]
        count = len(train) if isinstance(train, InMemoryImages) else min(len(train), MEASURED_FILES)
        chosen = np.linspace(0, len(train) - 1, count).round().astype(np.int64)
        images: DataLoader[Batch] = DataLoader(
            train,  # type: ignore[arg-type]
            batch_sampler=[chosen[start : start + 64].tolist() for start in range(0, count, 64)],
            collate_fn=keep_batch,
            num_workers=self._workers(train, count // 64),
        )
        statistics = mean_and_std(batch for batch, _ in images)
        return self.splits["val"].__getitems__([0])[0].shape[1:], statistics

    def divide(self, labels: Positions, test_fraction: float, validate: bool = True) -> dict[str, Positions]:
        """Give the positions of `labels` that go into each split, every class in its share.

        Args:
            test_fraction: of all; 0 makes no test split.
            validate: whether to make a val split.
        """
        splits = {"train": np.arange(len(labels))}
        if test_fraction:
            splits["train"], splits["test"] = split_off(labels, splits["train"], 0.0, test_fraction, self.split_seed)
        if validate:
            start, share = 0.0, self.val_fraction / (1 - test_fraction)
            if self.n_folds is not None:
                start, share = self.fold / self.n_folds, 1 / self.n_folds
            splits["train"], splits["val"] = split_off(labels, splits["train"], start, share, self.split_seed)
        return splits

    def class_weights(self) -> Tensor:
        """Give weights float32 (classes,) for a loss: inverse to a class's share of the training split, on average 1
        over the training samples."""
        labels = self.splits["train"].labels
        counts = torch.bincount(labels, minlength=self.data_spec.num_classes).clamp(min=1)
        return len(labels) / (len(counts) * counts.float())

    def train_dataloader(self) -> DataLoader[Batch]:
        return self._loader("train", train=True)

    def val_dataloader(self) -> DataLoader[Batch]:
        return self._loader("val")

    def test_dataloader(self) -> DataLoader[Batch]:
        return self._loader(self.test_split)

    def _loader(self, split: str, train: bool = False) -> DataLoader[Batch]:
        """Serve this process's share of a split.

        Raises:
            ConfigError: there is no such split, or there are fewer images, or a smaller batch, than processes.
        """
        if split not in self.splits:
            raise ConfigError(f"There is no {split} split. Allowed: {', '.join(self.splits)}. Try split=val.")
        images = self.splits[split]
        world_size, rank = (self.trainer.world_size, self.trainer.global_rank) if self.trainer else (1, 0)
        shared = self.batch_size - self.batch_size % world_size
        if shared == 0 or len(images) < world_size:
            raise ConfigError(
                f"{world_size} processes cannot share the {split} split of {len(images)} images in batches of "
                f"{self.batch_size}: each needs at least one. Try trainer.devices={min(self.batch_size, len(images))}."
            )
        if shared != self.batch_size and rank == 0 and train:
            message = "data.batch_size=%d does not divide by %d processes: using %d"
            log.info(message, self.batch_size, world_size, shared)
        if train and min(shared, len(images)) // world_size == 1:
            self._refuse_batch_norm()
        weights = self.class_weights()[images.labels] if train and self.balance else None
        resume_at = self._resume_at if train else (0, 0)
        batches = SharedBatches(len(images), shared, rank, world_size, self.seed, train, weights, resume_at)
        workers = self._workers(images, len(batches))
        on_cuda = self.trainer is not None and self.trainer.strategy.root_device.type == "cuda"
        if train and rank == 0 and workers:
            log.info("data: %d worker processes on each device", workers)
        return DataLoader(
            images,  # type: ignore[arg-type]
            batch_sampler=batches,
            collate_fn=keep_batch,
            num_workers=workers,
            persistent_workers=workers > 0,
            pin_memory=on_cuda if self.pin_memory == "auto" else self.pin_memory,
            # Of its own, so that the number of loaders and workers leaves the run's random numbers alone.
            generator=torch.Generator().manual_seed(self.seed * 1_000_003 + rank),
        )

    def _workers(self, images: Images, batches: int) -> int:
        if self.num_workers != "auto":
            return self.num_workers
        if not images.needs_workers:
            return 0
        processes = self.trainer.num_devices if self.trainer else 1
        return min(max(1, cores() // processes), MOST_WORKERS, batches)

    def _refuse_batch_norm(self) -> None:
        parts = self.trainer.lightning_module.modules() if self.trainer and self.trainer.lightning_module else ()
        if any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in parts):
            raise ConfigError(
                f"A training batch of data.batch_size={self.batch_size} gives a process a single image, and BatchNorm "
                "has no variance of one. Try data.batch_size=64, or a model without BatchNorm."
            )

    def state_dict(self) -> dict[str, Any]:
        """Give the place in the order of training batches: the epoch and the number of its batches that are done."""
        assert self.trainer is not None
        loop = self.trainer.fit_loop
        epochs: Any = loop.epoch_progress.current
        batches: Any = loop.epoch_loop.batch_progress.current
        begun = epochs.started > epochs.processed
        return {"epoch": epochs.processed, "batches": batches.processed if begun else 0}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._resume_at = (state_dict["epoch"], state_dict["batches"])

    def on_before_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        if self.trainer is not None and self.trainer.training:
            # What is drawn for a batch depends on its place alone, so a resumed run draws it again.
            epochs: Any = self.trainer.fit_loop.epoch_progress.current
            batches = self.trainer.fit_loop.epoch_loop.batch_progress.current
            seed_all(self.seed, epochs.processed, batches.ready, self.trainer.global_rank)
        return batch

    def on_after_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        # The summary of the model sends images without labels this way.
        if self.trainer is None or not self.trainer.training or isinstance(batch, Tensor):
            return batch
        images, labels = batch
        return augment(images, self.data_spec.image_size, self.augment, self.flip), labels

    def write_split(self, run_dir: Path) -> None:
        """Record in a run directory what went where, if the data could change."""

    def read_split(self, run_dir: Path) -> None:
        """Take the split of a run instead of making one, if the run recorded it. Called before `setup`."""


def seed_all(seed: int, epoch: int, batch: int, rank: int) -> None:
    """Seed Python, NumPy, torch's CPU and the current device for one batch."""
    mixed = (((seed * 1_000_003 + epoch) * 1_000_003 + batch) * 1_000_003 + rank) % 2**32
    random.seed(mixed)
    np.random.seed(mixed)
    # torch.manual_seed asks every kind of device, which takes a hundred times as long.
    torch.default_generator.manual_seed(mixed)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed(mixed)
    if torch.backends.mps.is_available():
        torch.mps.manual_seed(mixed)
