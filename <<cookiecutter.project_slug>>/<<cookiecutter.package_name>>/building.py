"""Builds objects from configuration, and says which arguments exist when one is wrong."""

import inspect
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from hydra.errors import InstantiationException
from hydra.utils import get_object, instantiate
from lightning import Callback, LightningDataModule
from omegaconf import DictConfig, OmegaConf
from torch import nn
from torchmetrics import Metric

from .configuration import ConfigError
from .data.spec import DataSpec
from .models.image_classifier import ImageClassifier

# Keys of `model` that change how a run trains its network; models/switches.py reads them. What comes out of a
# checkpoint is built without.
SWITCHES = ("class_weights", "init_from", "channels_last", "gradient_checkpointing", "compile")

# A configuration out of a checkpoint may have come from anywhere. It may only name classes of these kinds in these
# packages. Add the packages whose networks, losses or data modules your checkpoints use.
TRUSTED_PACKAGES = (__package__, "torch", "torchvision", "torchmetrics", "lightning", "timm")
TRUSTED_KINDS = (
    nn.Module,
    torch.optim.Optimizer,
    torch.optim.lr_scheduler.LRScheduler,
    LightningDataModule,
    Callback,
)
TRUSTED_BUILDERS = (f"{__package__}.optim.", "torchvision.models.")


def build(config: DictConfig, **arguments: Any) -> Any:
    """Call the `_target_` with the configured arguments and `arguments`; with `_partial_: true` leave the call open.

    Raises:
        ConfigError: the target does not exist or does not take the arguments.
    """
    try:
        # Called here and not by Hydra, which would turn data classes among the arguments into configuration.
        target = instantiate(config, _partial_=True, _convert_="all")
    except InstantiationException as error:
        if isinstance(error.__cause__, ConfigError):
            raise error.__cause__ from error
        raise ConfigError(f"{config.get('_target_')} cannot be used: {error}") from error
    if config.get("_partial_"):
        return target
    signature = inspect.signature(target.func)
    try:
        signature.bind(*target.args, **target.keywords, **arguments)
    except TypeError as error:
        raise ConfigError(
            f"{config._target_} cannot be called: {error}. Its arguments are: {', '.join(signature.parameters)}."
        ) from error
    try:
        return target(**arguments)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{config._target_} refuses its arguments: {error}") from error


def build_model(config: DictConfig, data_spec: DataSpec) -> ImageClassifier:
    """Build the classifier that a run's configuration describes; its ends fit the data."""
    net = build(config.model.net, data_spec=data_spec)
    if getattr(net, "normalisation", None):
        # Pretrained weights know images by the mean and deviation of their own training.
        mean, std = net.normalisation
        data_spec = replace(data_spec, mean=mean, std=std)

    def metrics(stage: str) -> dict[str, Metric]:
        chosen = {name: entry for name, entry in (config.model.metrics or {}).items() if entry is not None}
        return {
            str(name): build(entry, num_classes=data_spec.num_classes)
            for name, entry in chosen.items()
            # Of five classes, the true one is always among the best five.
            if entry.get("top_k", 1) < data_spec.num_classes
            and (stage != "train" or name in config.model.train_metrics)
        }

    parts = {
        "net": net,
        "loss": build(config.model.loss),
        "metrics": metrics,
        "optimizer": build(_without(config.optimizer, "backbone_lr_scale")),
        "scheduler": build(config.scheduler),
        "backbone_lr_scale": config.optimizer.get("backbone_lr_scale", 1.0),
    }
    others = _without(config.model, "net", "loss", "metrics", "train_metrics", *SWITCHES)
    model: ImageClassifier = build(others, data_spec=data_spec, **parts)
    return model


def _without(config: DictConfig, *names: str) -> DictConfig:
    return OmegaConf.masked_copy(config, [str(key) for key in config if key not in names])


def check_targets(config: Any, *more_kinds: type) -> None:
    """Refuse a configuration that names anything but the kinds a checkpoint may name.

    The object behind a name is judged, not the name: a trusted module that imports `os` makes nothing else of it.

    Raises:
        ConfigError: a target is of another kind or lies in another package, or a value would be computed.
    """
    # The same containers that will be built from: a tuple, for one, becomes a list.
    config = OmegaConf.to_container(OmegaConf.create(config), resolve=False)
    for text in _strings(config):
        # A resolver could put together a target that nobody has looked at. Ours are written resolved.
        if "${" in text:
            raise ConfigError(
                f"The checkpoint's configuration holds {text!r}, which would be computed. Nothing of it was run."
            )
    for target in _targets(config):
        package = target.split(".")[0] if isinstance(target, str) else ""
        try:
            if package in TRUSTED_PACKAGES and _is_trusted(get_object(target), *more_kinds):
                continue
        except (ImportError, AttributeError) as error:
            raise ConfigError(
                f"The checkpoint names {target}, which is not there: {str(error).splitlines()[0]} "
                f"Install {package}, or bring back the code with which the checkpoint was made."
            ) from error
        raise ConfigError(
            f"The checkpoint names {target}, which is not a network, loss, metric, optimizer, schedule, data module or "
            f"callback of {', '.join(TRUSTED_PACKAGES)}. Nothing of it was run. If the checkpoint is your own, add "
            f"the package to TRUSTED_PACKAGES in {__package__}/building.py."
        )


def _targets(node: Any) -> Iterator[Any]:
    if isinstance(node, dict):
        if "_target_" in node:
            yield node["_target_"]
        for value in node.values():
            yield from _targets(value)
    elif isinstance(node, list):
        for value in node:
            yield from _targets(value)


def _strings(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        for item in node.items():
            yield from _strings(list(item))
    elif isinstance(node, list):
        for value in node:
            yield from _strings(value)
    elif isinstance(node, str):
        yield node


def _is_trusted(target: Any, *more_kinds: type) -> bool:
    if inspect.isclass(target):
        return issubclass(target, (*TRUSTED_KINDS, *more_kinds))
    return inspect.isfunction(target) and target.__module__.startswith(TRUSTED_BUILDERS)
