"""Keeps the screen to what a reader needs: libraries report warnings and errors only, known warnings not at all."""

import logging
import warnings

QUIET_LOGGERS = ("lightning.pytorch", "lightning.fabric", "onnxscript", "onnx_ir", "torch.onnx", "matplotlib")
# What these say at INFO is asked for, or explains how a run ended.
HEARD_LOGGERS = ("lightning.pytorch.callbacks.early_stopping", "lightning.pytorch.profilers")

EXPECTED_WARNINGS = (
    # Hydra has written into the run directory before Lightning's CSV logger; it has no metrics.csv yet.
    "Experiment logs directory .* exists and is not empty",
    # Batches are served whole from memory, so worker processes would only cost.
    "The '.*_dataloader' does not have many workers",
    # Averages of an epoch are logged however few batches it has.
    "The number of training batches .* is smaller than the logging interval",
    # The first convolution of grey images has two equal layouts of its gradient; nothing is slower for it.
    "Grad strides do not match bucket view strides",
    # The data module gives the batches that are left of an epoch.
    "You're resuming from a checkpoint that ended before the epoch ended",
    # Of Lightning's own code.
    r"`isinstance\(treespec, LeafSpec\)` is deprecated",
)


def quiet_libraries() -> None:
    # Beside the handlers that Hydra sets up, this one would print every line of Lightning's a second time.
    logging.getLogger("lightning").handlers.clear()
    for name in QUIET_LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)
    for name in HEARD_LOGGERS:
        logging.getLogger(name).setLevel(logging.INFO)
    # Into the run's log, too.
    logging.captureWarnings(True)
    for message in EXPECTED_WARNINGS:
        warnings.filterwarnings("ignore", message)
