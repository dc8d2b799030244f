"""Reads a checkpoint: weights, the run's configuration and the data's specification, from the file alone."""

import inspect
import math
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from hydra.utils import get_object
from lightning.pytorch.plugins.io import TorchCheckpointIO
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from torch import Tensor

from .building import build_model, check_targets
from .configuration import ConfigError, RunError, find_checkpoint, plain, run_of_checkpoint, shown
from .data.datamodule import ImageDataModule
from .data.spec import DataSpec
from .masking import masked
from .models.image_classifier import CHECKPOINT_FORMAT, ImageClassifier

# Types of what is used without a further look. `[dict]` is a list of them, at least one; `{str: dict}` holds them under
# names of any kind, and what is None there is switched off; `(dict,)` may be None itself.
BUILT = {"_target_": str}
READ: dict[str, Any] = {
    "state_dict": {str: object},
    "config": {
        "seed": int,
        "trainer": {"accelerator": str, "devices": object, "num_nodes": int, "precision": str, "strategy": str},
        "data": BUILT,
        "optimizer": BUILT,
        "scheduler": BUILT,
        "model": {**BUILT, "net": BUILT, "loss": BUILT, "metrics": ({str: BUILT},), "train_metrics": list},
    },
    "data_spec": {"class_names": list, "channels": int, "image_size": int, "mean": list, "std": list},
}
# What a run needs beyond that to go on. Lightning passes over some parts that are missing and begins them anew.
COUNT = {"ready": int, "started": int, "processed": int, "completed": int}
RESUMED: dict[str, Any] = {
    "pytorch-lightning_version": str,
    "epoch": int,
    "global_step": int,
    "total_steps": int,
    "callbacks": {str: dict},
    "loops": {
        "fit_loop": {
            "epoch_progress": {"total": COUNT, "current": COUNT},
            "epoch_loop.batch_progress": {"total": COUNT, "current": COUNT, "is_last_batch": bool},
            "epoch_loop.automatic_optimization.optim_progress": {"optimizer": {"step": {"total": {"completed": int}}}},
            "epoch_loop.state_dict": {"_batches_that_stepped": int},
            str: dict,
        }
    },
    "optimizer_states": [{"state": {object: dict}, "param_groups": [dict]}],
    "lr_schedulers": [dict],
    "train_metrics": [{"sums": dict, "kept": list}],
}
PLACE = {"epoch": int, "batches": int}


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
            run_dir = shown(run_of_checkpoint(path))
            left, command = "There is no checkpoint yet", f"hydra.run.dir={run_dir} resume=auto"
            if any(Path(path).parent.glob("*.ckpt")):
                left, command = "The checkpoint before it is whole", f"resume={run_dir}"
            raise RunError(
                f"{shown(path)} could not be written: {error.strerror}. It needs about {math.ceil(needed)} MB. "
                f"{left}. Make room or the folder writable, and go on with: python train.py {command}"
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


def read_checkpoint(path: str | Path, resume: bool = False) -> Checkpoint:
    """Read a run directory's best checkpoint or a checkpoint file.

    Args:
        resume: a run is to go on from it.

    Raises:
        ConfigError: there is none, it was not made by this project, it names code that is not trusted, or a part of it
            is missing.
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
    # As a number, True is 1.
    if isinstance(content, dict) and (type(found) is not int or found != CHECKPOINT_FORMAT):
        raise ConfigError(
            f"{file} has format {found!r}; this code reads format {CHECKPOINT_FORMAT}. "
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
        readable, data_spec = OmegaConf.create(config), DataSpec.from_dict(content["data_spec"])
    except (TypeError, RecursionError, OmegaConfBaseException) as error:
        raise ConfigError(f"{file} holds a configuration that cannot be read: {error}. Try logs/latest.") from error
    wrong = next(_misfits(content, READ), None)
    if wrong:
        raise ConfigError(
            f"{file} is not as a run writes it: {wrong}. A checkpoint written by this project's train.py is allowed. "
            "Try logs/latest."
        )
    if resume:
        _check_resumable(content, file)
    return Checkpoint(
        path=file,
        config=readable,
        data_spec=data_spec,
        state_dict=content["state_dict"],
        epoch=content.get("epoch", 0),
        step=content.get("global_step", 0),
    )


def _check_resumable(content: dict[str, Any], file: Path) -> None:
    parts = RESUMED
    datamodule = get_object(content["config"]["data"]["_target_"])
    if inspect.isclass(datamodule) and issubclass(datamodule, ImageDataModule):
        parts = {**parts, datamodule.__qualname__: PLACE}
    if "metrics" in content:
        parts = {**parts, "metrics": {str: Real}}
    wrong = next(_misfits(content, parts), None)
    if wrong:
        raise ConfigError(
            f"A run cannot go on from {file}: {wrong}. A last.ckpt as train.py writes it is allowed. To start a new "
            f"run from its weights, try model.init_from={shown(file)}."
        )


def _misfits(found: Any, wanted: Any, name: str = "") -> Iterator[str]:
    """Say where something is missing or of another type: `config.seed is str, not int`."""
    if isinstance(wanted, tuple):
        if found is None:
            return
        (wanted,) = wanted
    kind: type[Any] = wanted if isinstance(wanted, type) else type(wanted)
    if found is None:
        yield f"{name} is missing"
    elif not isinstance(found, kind) or (kind is int and isinstance(found, bool)):
        yield f"{name} is {type(found).__name__}, not {kind.__name__}"
    elif isinstance(wanted, list):
        for position, part in enumerate(found or [None]):
            yield from _misfits(part, wanted[0], f"{name}[{position}]")
    elif isinstance(wanted, dict):
        for key, part in wanted.items():
            free = isinstance(key, type)
            for own in found if free else [key]:
                if free and not isinstance(own, key):
                    yield f"{name} has the key {own!r}, not a {key.__name__}"
                elif not free or found[own] is not None:
                    yield from _misfits(found.get(own), part, f"{name}.{own}".lstrip("."))
