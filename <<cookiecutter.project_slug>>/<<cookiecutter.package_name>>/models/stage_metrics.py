"""Loss and metrics of one stage over all its samples and processes (`model.metrics` in configs/train.yaml)."""

from typing import Any, cast

import torch
from torch import Tensor, nn
from torchmetrics import MeanMetric, Metric

# A call of torchmetrics takes as long as a step of a small network: batches are handed over this many at a time.
BATCHES_AT_A_TIME = 16


class StageMetrics(nn.Module):
    """
    Args:
        metrics: torchmetrics by name; each takes logits (N, classes) and labels (N,).
    """

    def __init__(self, metrics: dict[str, Metric]) -> None:
        super().__init__()
        # NaN is kept: a loss that is not a number has to be seen.
        self.all = nn.ModuleDict({"loss": MeanMetric(nan_strategy="disable"), **metrics})
        self._kept: list[tuple[Tensor, Tensor, Tensor]] = []

    def update(self, loss: Tensor, logits: Tensor, label: Tensor) -> None:
        """Take one batch: its mean loss, logits (N, classes) and labels (N,)."""
        self._kept.append((loss.detach().expand(len(label)), logits.detach(), label))
        if len(self._kept) == BATCHES_AT_A_TIME:
            self._hand_over()

    def compute(self) -> dict[str, Metric]:
        """Give every metric, up to date; whoever logs it computes and resets it."""
        self._hand_over()
        return cast(dict[str, Metric], dict(self.all.items()))

    def dump(self) -> dict[str, Any]:
        """Give what was summed so far, and what is still to be, as plain tensors."""
        for metric in self.all.values():
            cast(Metric, metric).persistent(True)
        state = self.state_dict()
        for metric in self.all.values():
            cast(Metric, metric).persistent(False)
        return {"sums": state, "kept": self._kept}

    def load(self, dumped: dict[str, Any]) -> None:
        self.load_state_dict(dumped["sums"])
        self._kept = dumped["kept"]

    def _hand_over(self) -> None:
        if self._kept:
            loss, logits, label = (torch.cat(parts) for parts in zip(*self._kept, strict=True))
            self._kept.clear()
            for name, metric in self.all.items():
                # The loss once for each sample: torchmetrics drops `weight` where NaN is kept.
                cast(Metric, metric).update(*((loss,) if name == "loss" else (logits, label)))
