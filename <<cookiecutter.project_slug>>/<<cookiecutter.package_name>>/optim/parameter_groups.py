"""Sorts a network's parameters into groups that share learning rate and weight decay (configs/optimizer)."""

from collections import Counter
from typing import Any

from torch import nn

from ..configuration import ConfigError


def parameter_groups(net: nn.Module, lr: float, weight_decay: float, backbone_lr_scale: float) -> list[dict[str, Any]]:
    """Group the trainable parameters: no weight decay on biases and norms, a rate of its own for a backbone.

    Args:
        net: its `head`, where it has one, learns at `lr`, the rest at `backbone_lr_scale * lr`.

    Raises:
        ConfigError: the scale is no positive number, or nothing is left to train.
    """
    if backbone_lr_scale <= 0:
        raise ConfigError(
            f"optimizer.backbone_lr_scale must be above 0, got {backbone_lr_scale}. "
            "Try optimizer.backbone_lr_scale=0.1, or model.freeze_backbone=true to leave the backbone as it is."
        )
    # Every group costs time in each step, and a single rate needs no groups.
    fast = net if backbone_lr_scale == 1 else getattr(net, "head", net)
    head = {id(parameter) for parameter in fast.parameters()}
    head_name = "network" if fast is net else "head"
    groups: dict[tuple[bool, bool], list[nn.Parameter]] = {}
    for parameter in net.parameters():
        if parameter.requires_grad:
            # Biases and the scales and shifts of norms are vectors; pulling them to zero only hurts.
            groups.setdefault((id(parameter) in head, parameter.ndim > 1), []).append(parameter)
    if not groups:
        raise ConfigError("Every parameter is frozen: there is nothing to train. Try model.freeze_backbone=false.")
    return [
        {
            "name": f"{head_name if in_head else 'backbone'}{'' if decays else ', no decay'}",
            "params": parameters,
            "lr": lr * (1.0 if in_head else backbone_lr_scale),
            "weight_decay": weight_decay if decays else 0.0,
        }
        for (in_head, decays), parameters in sorted(groups.items(), reverse=True, key=lambda item: item[0])
    ]


def check_groups(net: nn.Module, groups: list[dict[str, Any]]) -> None:
    """
    Raises:
        ValueError: a trainable parameter is in no group or in several.
    """
    found = Counter(id(parameter) for group in groups for parameter in group["params"])
    for name, parameter in net.named_parameters():
        if parameter.requires_grad and found[id(parameter)] != 1:
            raise ValueError(f"The parameter {name} is in {found[id(parameter)]} groups of the optimizer, not in one.")


def table(groups: list[dict[str, Any]]) -> str:
    """Describe the groups, one line each: parameters, learning rate, weight decay."""
    rows = [("parameters", "number", "lr", "weight decay")]
    for group in groups:
        number = sum(parameter.numel() for parameter in group["params"])
        rows.append((group["name"], f"{number:,}", f"{group['lr']:g}", f"{group['weight_decay']:g}"))
    return "\n".join(f"{name:<20}{number:>12}{lr:>10}{decay:>14}" for name, number, lr, decay in rows)
