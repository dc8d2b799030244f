"""Reads a checkpoint: weights, the run's configuration and the data's specification, from the file alone."""

import math
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from torch import Tensor

from .building import build_model, check_targets
from .configuration import ConfigError, RunError, find_checkpoint, plain, run_of_checkpoint, shown
from .data.spec import DataSpec
from .masking import masked
from .models.image_classifier import CHECKPOINT_FORMAT, ImageClassifier


class AtomicCheckpointIO(TorchCheckpointIO):
    """Puts a checkpoint in its place once it is whole: Lightning's own way copies it there from another disk."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0  # spent on writing, which the measured speed of training leaves out

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        """
        Raises:
            RunError: the disk is full or the folder cannot be written.
        """
        started = perf_counter()
        unfinished = Path(path).with_name(f".{Path(path).name}.unfinished")
        try:
            super().save_checkpoint(checkpoint, unfinished, storage_options)
            unfinished.replace(path)
        except OSError as error:
            needed = sum(part.numel() * part.itemsize for part in _tensors(checkpoint)) / 1e6
            raise RunError(
                f"{shown(path)} could not be written: {error.strerror}. It needs about {math.ceil(needed)} MB. "
                "The checkpoint before it is whole. Make room or the folder writable, and go on with: "
                f"python train.py resume={shown(run_of_checkpoint(path))}"
            ) from error
        finally:
            unfinished.unlink(missing_ok=True)
            self.seconds += perf_counter() - started


def _tensors(node: Any) -> Iterator[Tensor]:
    if isinstance(node, Tensor):
        yield node
    elif isinstance(node, dict | list | tuple):
        for part in node.values() if isinstance(node, dict) else node:
            yield from _tensors(part)


@dataclass(frozen=True)
class Checkpoint:
    path: Path
    config: DictConfig
    data_spec: DataSpec
    state_dict: dict[str, Tensor]
    epoch: int  # epochs that were trained to their end
    step: int  # optimizer steps that were made

    def build_model(self) -> ImageClassifier:
        """
        Raises:
            ConfigError: the weights do not fit this code.
        """
        try:
            return plain_model(self.config, self.data_spec, self.state_dict)
        except (RuntimeError, OmegaConfBaseException) as error:
            raise ConfigError(
                f"{self.path} does not fit this code: {error}\nBring back the code with which it was trained."
            ) from error


def plain_model(config: DictConfig, data_spec: DataSpec, state_dict: dict[str, Tensor]) -> ImageClassifier:
    """Build a model in float32 on the CPU, ready to evaluate; no switch of training wraps or compiles its network."""
    asked, config = masked(plain(config)), config.copy()
    if "pretrained" in config.model.net:
        # The weights are at hand; no others are downloaded.
        config.model.net.pretrained = False
    model = build_model(config, data_spec)
    model.load_state_dict(state_dict)
    model.config = asked
    return model.eval()


def read_checkpoint(path: str | Path) -> Checkpoint:
    """Read a run directory's best checkpoint or a checkpoint file.

    Raises:
        ConfigError: there is none, it was not made by this project, or it names code that is not trusted.
    """
    file = find_checkpoint(path)
    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, OSError, EOFError, ValueError, KeyError) as error:
        reason = "it holds more than plain types" if isinstance(error, pickle.UnpicklingError) else "it is damaged"
        raise ConfigError(
            f"{file} is not a checkpoint that can be trusted: {reason}. Nothing of it was run. "
            "A checkpoint written by this project's train.py is allowed. Try logs/latest."
        ) from error
    found = content.get("format", CHECKPOINT_FORMAT) if isinstance(content, dict) else None
    if isinstance(content, dict) and found != CHECKPOINT_FORMAT:
        raise ConfigError(
            f"{file} has format {found}; this code reads format {CHECKPOINT_FORMAT}. "
            "Bring back the code with which it was trained."
        )
    parts = ("state_dict", "config", "data_spec")
    if not isinstance(content, dict) or not all(isinstance(content.get(part), dict) for part in parts):
        raise ConfigError(
            f"{file} lacks the run's configuration. A checkpoint written by this project's train.py is allowed. "
            "Try logs/latest."
        )
    # Loggers are never built from a checkpoint.
    config = {key: value for key, value in content["config"].items() if key != "logger"}
    try:
        check_targets(config)
        return Checkpoint(
            path=file,
            config=OmegaConf.create(config),
            data_spec=DataSpec.from_dict(content["data_spec"]),
            state_dict=content["state_dict"],
            epoch=content.get("epoch", 0),
            step=content.get("global_step", 0),
        )
    except (TypeError, RecursionError, OmegaConfBaseException) as error:
        raise ConfigError(f"{file} holds a configuration that cannot be read: {error}. Try logs/latest.") from error
