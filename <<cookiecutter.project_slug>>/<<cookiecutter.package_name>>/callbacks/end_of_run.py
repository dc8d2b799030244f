"""The hook through which optional rooms take part in a run after its last stage."""

from typing import Any

from lightning import Callback, LightningDataModule

from ..models.image_classifier import ImageClassifier


class EndOfRun(Callback):
    def on_run_end(self, model: ImageClassifier, datamodule: LightningDataModule, results: dict[str, Any]) -> None:
        """Add to the run's results. Called on rank 0 with the best weights in the model."""
