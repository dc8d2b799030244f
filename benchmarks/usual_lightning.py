"""MNIST in Lightning as it is usually written: `ToTensor` and `Normalize` for each sample, metrics at each step.

`python usual_lightning.py ROOT WORKERS EPOCHS BATCH_SIZE WIDTH...` prints the training samples per second of an mlp
with hidden layers of these widths, validation left out. Loggers, checkpoints and progress bar are Lightning's own.
"""

import sys
import tempfile
from time import perf_counter

import torch
from lightning import LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader, random_split
from torchmetrics.classification import MulticlassAccuracy
from torchvision import transforms
from torchvision.datasets import MNIST


class Usual(LightningModule):
    def __init__(self, widths: list[int]) -> None:
        super().__init__()
        sizes = [784, *widths]
        hidden = [part for pair in zip(sizes, widths, strict=False) for part in (nn.Linear(*pair), nn.ReLU())]
        self.net = nn.Sequential(nn.Flatten(), *hidden, nn.Linear(sizes[-1], 10))
        self.loss = nn.CrossEntropyLoss()
        self.train_acc, self.val_acc = MulticlassAccuracy(10), MulticlassAccuracy(10)
        self.samples, self.seconds, self.started = 0, 0.0, 0.0

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        images, labels = batch
        logits = self.net(images)
        loss: Tensor = self.loss(logits, labels)
        self.train_acc(logits, labels)
        self.log("train/loss", loss, on_step=True, on_epoch=True, prog_bar=True)
        self.log("train/acc", self.train_acc, on_step=False, on_epoch=True, prog_bar=True)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        images, labels = batch
        logits = self.net(images)
        self.val_acc(logits, labels)
        self.log("val/loss", self.loss(logits, labels), prog_bar=True)
        self.log("val/acc", self.val_acc, prog_bar=True)

    def on_train_batch_start(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        # The first batches, for which workers start, do not count.
        if batch_idx == 2:
            self.started = perf_counter()

    def on_train_batch_end(self, outputs: Tensor, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        if batch_idx >= 2:
            self.samples += len(batch[1])
        if batch_idx == self.trainer.num_training_batches - 1:
            self.seconds += perf_counter() - self.started

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main(root: str, workers: int, epochs: int, batch_size: int, widths: list[int]) -> None:
    transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))])
    train, val = random_split(MNIST(root, train=True, transform=transform), (0.9, 0.1))
    options = {"batch_size": batch_size, "num_workers": workers, "persistent_workers": workers > 0}
    with tempfile.TemporaryDirectory() as folder:
        model = Usual(widths)
        trainer = Trainer(accelerator="cpu", max_epochs=epochs, default_root_dir=folder)
        trainer.fit(model, DataLoader(train, shuffle=True, **options), DataLoader(val, **options))
    print(model.samples / model.seconds)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:5]), widths=list(map(int, sys.argv[5:])))
