"""Measures how far an exported file's answers are from those of the checkpoint."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from .deployed import Deployed

BATCHES = (1, 2, 7)


def measure_parity(deployed: Deployed, run: Any, images: Tensor | None) -> dict[str, Any]:
    """Give the largest difference of a probability and the share of equal labels, on `images` and on random ones.

    Args:
        run: the file's classifier.
        images: real ones, uint8 (N, C, H, W); where there are fewer than the largest batch they are repeated.
    """
    most = max(BATCHES)
    shape = (most, *deployed.example().shape[1:])
    sources = {"random": torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))}
    if images is not None:
        sources["validation"] = images.cpu()[torch.arange(most) % len(images)]
    differences, agreements = [], []
    for source in sources.values():
        for size in BATCHES:
            batch = source[:size]
            with torch.inference_mode():
                expected = deployed(batch).numpy()
            got = run(batch.numpy())
            differences.append(np.abs(got - expected).max())
            agreements.append(float((got.argmax(1) == expected.argmax(1)).mean()))
    # NumPy's maximum keeps a NaN, which Python's may lose.
    return {
        "images": sorted(sources),
        "max_difference": float(np.max(differences)),
        "label_agreement": min(agreements),
    }
