"""Switches that change how a network is trained, not what it is (the `model` block of configs/train.yaml)."""

import logging
from typing import Any

import torch
from omegaconf import DictConfig
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from ..checkpoints import read_checkpoint
from ..configuration import ConfigError, find_checkpoint, shown
from .image_classifier import ImageClassifier

log = logging.getLogger(__name__)


def switch_on(model: ImageClassifier, settings: DictConfig) -> None:
    """
    Raises:
        ConfigError: the network cannot do what is asked.
    """
    if settings.init_from is not None:
        load_weights(model, settings.init_from)
    if settings.channels_last:
        model.net.to(memory_format=torch.channels_last)
    if settings.gradient_checkpointing:
        checkpoint_blocks(model.net, _name(settings))
    if settings.compile:
        # In place: `torch.compile(net)` would put `_orig_mod.` before every key of the checkpoint.
        model.net.compile()


def load_weights(model: ImageClassifier, path: str) -> None:
    """Start from a checkpoint's weights and normalisation; a head of another shape stays new.

    Raises:
        ConfigError: it is no checkpoint, or more than the head differs.
    """
    file = find_checkpoint(path)
    given = read_checkpoint(file).state_dict
    own = model.state_dict()
    in_head = {id(parameter) for parameter in getattr(model.net, "head", nn.Module()).parameters()}
    head = {f"net.{name}" for name, parameter in model.net.named_parameters() if id(parameter) in in_head}
    new = {key for key in own if getattr(given.get(key), "shape", None) != own[key].shape}
    different = sorted((new | (given.keys() - own.keys())) - head)
    if different:
        raise ConfigError(
            f"model.init_from={path} holds another network: {different[0]} differs, and only the head may. "
            "Choose the network that the checkpoint was trained with, or another checkpoint."
        )
    model.load_state_dict({key: value for key, value in given.items() if key not in new}, strict=False)
    log.info("weights from %s%s", shown(file), ", with a new head" if new else "")


def checkpoint_blocks(net: nn.Module, name: str) -> None:
    """Let each block of a network forget its activations and compute them again in the backward pass.

    Raises:
        ConfigError: the network does not consist of blocks that run one after another.
    """
    blocks = list(_blocks(net))
    if not blocks:
        raise ConfigError(
            f"model.gradient_checkpointing needs blocks of layers that run one after another; {name} has none. "
            "Try model.gradient_checkpointing=false, or model=cnn or model=resnet18."
        )
    for parent, child_name, block in blocks:
        for norm in block.modules():
            if isinstance(norm, nn.modules.batchnorm._BatchNorm) and norm.momentum is not None:
                # It sees every batch twice: two steps of this size are one of the usual size.
                norm.momentum = 1 - (1 - norm.momentum) ** 0.5
        setattr(parent, child_name, checkpoint_wrapper(block))


def _blocks(module: nn.Module) -> Any:
    for name, child in module.named_children():
        is_block = isinstance(module, nn.Sequential) and any(True for _ in child.children())
        if is_block:
            yield module, name, child
        else:
            yield from _blocks(child)


def _name(settings: DictConfig) -> str:
    return str(settings.net.get("name") or settings.net._target_.rpartition(".")[2])
