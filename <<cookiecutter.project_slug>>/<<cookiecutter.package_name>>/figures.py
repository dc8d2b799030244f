"""Draws what an evaluation found (evaluation.py)."""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from torch import Tensor

from .findings import BINS

# Beyond these a name or a number would be too small to read.
NAMED_CLASSES, NUMBERED_CLASSES = 60, 30
COLUMNS = 6


def draw_confusion(matrix: Tensor, class_names: tuple[str, ...], path: Path) -> None:
    """Draw counts [true, predicted]; the colour is the share of the true class."""
    side = min(max(4.0, 0.45 * len(class_names)), 16.0)
    figure = Figure(figsize=(side + 1, side), layout="constrained")
    axes = figure.subplots()
    shares = matrix / matrix.sum(dim=1, keepdim=True).clamp(min=1)
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    axes.set(xlabel="predicted", ylabel="true", title="Confusion matrix (colour: share of the true class)")
    if len(class_names) <= NAMED_CLASSES:
        axes.set_xticks(range(len(class_names)), map(as_written, class_names), rotation=90)
        axes.set_yticks(range(len(class_names)), map(as_written, class_names))
    if len(class_names) <= NUMBERED_CLASSES:
        for true, row in enumerate(matrix.tolist()):
            for predicted, count in enumerate(row):
                if count:
                    colour = "white" if shares[true, predicted] > 0.5 else "black"
                    axes.text(predicted, true, count, ha="center", va="center", color=colour, fontsize=8)
    figure.savefig(path, dpi=150)


def draw_reliability(samples: Tensor, accuracy: Tensor, error: float, path: Path) -> None:
    """Draw the accuracy over the confidence of each bin, and how many samples lie in it.

    Args:
        error: expected calibration error.
    """
    figure = Figure(figsize=(5, 6), layout="constrained")
    upper, lower = figure.subplots(2, height_ratios=(3, 1), sharex=True)
    left, width = [number / BINS for number in range(BINS)], 1 / BINS
    upper.bar(left, accuracy.nan_to_num(), width, align="edge", edgecolor="white", label="accuracy")
    upper.plot((0, 1), (0, 1), "--", color="black", label="as sure as right")
    upper.set(ylabel="accuracy", xlim=(0, 1), ylim=(0, 1), title=f"Reliability: calibration error {error:.3f}")
    upper.legend(loc="upper left")
    lower.bar(left, samples, width, align="edge", edgecolor="white", color="grey")
    lower.set(xlabel="confidence", ylabel="samples")
    figure.savefig(path, dpi=150)


def draw_mistakes(found: dict[str, np.ndarray], class_names: tuple[str, ...], path: Path) -> None:
    """Draw images with their true class, the predicted one and its probability."""
    rows = -(-len(found["image"]) // COLUMNS)
    figure = Figure(figsize=(1.7 * COLUMNS, 2.2 * rows), layout="constrained")
    for axes in figure.subplots(rows, COLUMNS, squeeze=False).flat:
        axes.axis("off")
    for axes, image, true, predicted, confidence in zip(
        figure.axes, *(found[name] for name in ("image", "label", "predicted", "confidence")), strict=False
    ):
        axes.imshow(image.transpose(1, 2, 0), cmap="gray", vmin=0, vmax=255)
        names = [short(class_names[int(label)]) for label in (true, predicted)]
        axes.set_title(f"{names[0]}, not {names[1]}\n{100 * float(confidence):.1f} %", fontsize=9)
    figure.suptitle("The surest mistakes: true class, not the predicted one, and how sure")
    figure.savefig(path, dpi=150)


def short(name: str) -> str:
    return as_written(name if len(name) <= 12 else f"{name[:11]}…")


def as_written(name: str) -> str:
    """Keep matplotlib from reading text between dollar signs as a formula."""
    return name.replace("$", r"\$")
