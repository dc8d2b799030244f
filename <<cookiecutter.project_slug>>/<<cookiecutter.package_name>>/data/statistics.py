"""Mean and deviation of pixels, from which a model normalises its input."""

from collections.abc import Iterable

import torch
from torch import Tensor


def mean_and_std(batches: Iterable[Tensor]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Give mean and deviation of each channel over batches uint8 (N, C, H, W), on the scale 0 to 1."""
    count = 0
    total = squares = torch.zeros((), dtype=torch.float64)
    for images in batches:
        pixels = images.float()
        count += pixels[:, 0].numel()
        total = total + pixels.sum((0, 2, 3), dtype=torch.float64)
        squares = squares + pixels.square_().sum((0, 2, 3), dtype=torch.float64)
    mean = total / count
    std = (squares / count - mean**2).clamp(min=0).sqrt()
    return tuple((mean / 255).tolist()), tuple((std / 255).tolist())
