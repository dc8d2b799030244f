"""What an evaluation keeps beside the run's own metrics, exact over any number of processes (evaluation.py)."""

from typing import Any

import numpy as np
import torch
from lightning import Callback, LightningModule, Trainer
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.classification import MulticlassConfusionMatrix

from .data.spec import DataSpec

BINS = 15  # as in the literature on calibration since Guo et al., 2017
MISTAKES = 24


class Findings(Callback):
    """Collects during a test.

    Attributes:
        confusion: counts, int64 [true, predicted].
        reliability: what `Reliability` gives.
        mistakes: what `Mistakes` gives.
    """

    confusion: Tensor
    reliability: dict[str, Tensor]
    mistakes: dict[str, np.ndarray]

    def __init__(self, data_spec: DataSpec) -> None:
        self._confusion = MulticlassConfusionMatrix(data_spec.num_classes, validate_args=False)
        self._reliability = Reliability()
        self._mistakes = Mistakes(data_spec)

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for metric in (self._confusion, self._reliability, self._mistakes):
            metric.to(pl_module.device)

    def on_test_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        images, labels = batch
        self._confusion.update(outputs, labels)
        self._reliability.update(outputs, labels)
        self._mistakes.update(outputs, labels, images)

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.confusion = self._confusion.compute().cpu()
        self.reliability = self._reliability.compute()
        self.mistakes = self._mistakes.compute()


class Reliability(Metric):
    """Sums over equal bins of the predicted class's probability; gives `samples`, `confidence` and `accuracy` of each.

    Empty bins have NaN for the last two.
    """

    samples: Tensor
    confidence: Tensor
    correct: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name in ("samples", "confidence", "correct"):
            self.add_state(name, torch.zeros(BINS, dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, preds: Tensor, target: Tensor) -> None:
        confidence, predicted = preds.float().softmax(dim=1).max(dim=1)
        position = (confidence * BINS).long().clamp(max=BINS - 1)
        for state, values in (
            (self.samples, torch.ones_like(confidence)),
            (self.confidence, confidence),
            (self.correct, predicted == target),
        ):
            state.index_add_(0, position, values.to(state.dtype))

    def compute(self) -> dict[str, Tensor]:
        means = {"confidence": self.confidence / self.samples, "accuracy": self.correct / self.samples}
        return {name: values.cpu() for name, values in {"samples": self.samples, **means}.items()}


class Mistakes(Metric):
    """Keeps the wrong predictions of the highest probability, surest first, with their images.

    Gives `confidence` (n,), `label` and `predicted` (n,), and `image` uint8 (n, C, H, W), n up to MISTAKES.
    """

    def __init__(self, data_spec: DataSpec) -> None:
        super().__init__()
        side = data_spec.image_size
        # Filled from the start, so that each process has the same shapes to hand over; -1 marks an empty place.
        self.add_state("confidence", torch.full((MISTAKES,), -1.0), dist_reduce_fx=None)
        for name in ("label", "predicted"):
            self.add_state(name, torch.zeros(MISTAKES, dtype=torch.int64), dist_reduce_fx=None)
        shape = (MISTAKES, data_spec.channels, side, side)
        self.add_state("image", torch.zeros(shape, dtype=torch.uint8), dist_reduce_fx=None)

    def update(self, preds: Tensor, target: Tensor, images: Tensor) -> None:
        confidence, predicted = preds.float().softmax(dim=1).max(dim=1)
        wrong = predicted != target
        new = {"confidence": confidence, "label": target, "predicted": predicted, "image": images}
        joined = {name: torch.cat([getattr(self, name), values[wrong]]) for name, values in new.items()}
        for name, values in _surest(joined).items():
            setattr(self, name, values)

    def compute(self) -> dict[str, np.ndarray]:
        # Of several processes each state is a stack of theirs.
        depths = {"confidence": 1, "label": 1, "predicted": 1, "image": 4}
        flat = {}
        for name, depth in depths.items():
            values = getattr(self, name)
            flat[name] = values.flatten(0, values.ndim - depth)
        kept = _surest(flat)
        # As arrays: of a single mistake's tensors torchmetrics would make numbers.
        return {name: values[kept["confidence"] >= 0].cpu().numpy() for name, values in kept.items()}


def _surest(samples: dict[str, Tensor]) -> dict[str, Tensor]:
    order = samples["confidence"].sort(descending=True, stable=True).indices[:MISTAKES]
    return {name: values[order] for name, values in samples.items()}
