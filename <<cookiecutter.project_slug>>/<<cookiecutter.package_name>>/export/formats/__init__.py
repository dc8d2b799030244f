"""One module for each kind of file, found by its name: delete one, or add one with the same four names.

SUFFIX, NEEDS (packages that `write` imports), `write(model, described, path)` and `classifier(path)`, which raises
ValueError for a file of another kind. Importing a module loads nothing heavy: an ONNX file is served without torch.
"""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np


class TorchClassifier:
    """Runs a module of torch on NumPy images.

    Args:
        model: from uint8 (N, C, H, W) to probabilities (N, classes).
        described: texts that the file carries.
    """

    def __init__(self, model: Any, described: Mapping[str, str]) -> None:
        self.model = model
        self.data_spec = data_spec_of(described)

    def __call__(self, images: np.ndarray) -> np.ndarray:
        import torch

        with torch.inference_mode():
            probabilities: np.ndarray = self.model(torch.from_numpy(images)).numpy()
        return probabilities


def data_spec_of(described: Mapping[str, str]) -> dict[str, Any]:
    """Read the description of classes and images that every format carries.

    Raises:
        ValueError: the file was not written by this project.
    """
    if not described.get("data_spec"):
        raise ValueError("it carries no description of its classes and image size")
    data_spec: dict[str, Any] = json.loads(described["data_spec"])
    return data_spec


def first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
