"""Turns uint8 pixels into what a network takes. Part of the model, so training and every export share its numbers."""

import torch
from torch import Tensor, nn


class Preprocess(nn.Module):
    """Scale uint8 (N, C, H, W) to 0..1 and normalise each channel."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1))
        # A channel that never varies has no deviation to divide by.
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1).clamp(min=1e-3))

    def forward(self, image: Tensor) -> Tensor:
        return (image.to(self.mean.dtype) / 255 - self.mean) / self.std
