"""Gives the loops that a project is compared with the same data, network and settings as its train.py."""

import importlib
import math
import sys
from typing import Any

import hydra
import torch
from omegaconf import DictConfig
from torch.optim.lr_scheduler import LambdaLR

# Libraries set themselves up in the first batches: neither side counts them.
WARM_UP_BATCHES = 2


def load(project: str, package: str, overrides: list[str]) -> tuple[Any, torch.nn.Module, DictConfig]:
    """Give the data module, ready to serve, the network in the project's layout, and the configuration."""
    sys.path.insert(0, project)
    building = importlib.import_module(f"{package}.building")
    request = importlib.import_module(f"{package}.request")
    with hydra.initialize_config_dir(f"{project}/configs", version_base="1.3"):
        config = hydra.compose("train", request.switch_off(overrides))
    torch.manual_seed(config.seed)
    datamodule = building.build(config.data)
    datamodule.setup()
    net = building.build(config.model.net, data_spec=datamodule.data_spec)
    if config.model.channels_last:
        # `auto`, too: it is what the project takes on a CPU.
        net.to(memory_format=torch.channels_last)
    return datamodule, net, config


def optimizer_and_schedule(
    net: torch.nn.Module, config: DictConfig, total_steps: int
) -> tuple[torch.optim.Optimizer, LambdaLR]:
    """Give a fused AdamW whose rate rises and falls as the project's default schedule says."""
    settings = config.optimizer
    optimizer = torch.optim.AdamW(net.parameters(), lr=settings.lr, weight_decay=settings.weight_decay, fused=True)
    warmup = round(config.scheduler.warmup_fraction * total_steps)
    final = config.scheduler.final_lr_fraction

    def rate(step: int) -> float:
        if step < warmup:
            return (step + 1) / (warmup + 1)
        return float(final + (1 - final) * (1 + math.cos(math.pi * (step - warmup) / (total_steps - warmup))) / 2)

    return optimizer, LambdaLR(optimizer, rate)


def mean_and_std(datamodule: Any) -> tuple[torch.Tensor, torch.Tensor]:
    spec = datamodule.data_spec
    return torch.tensor(spec.mean).view(-1, 1, 1), torch.tensor(spec.std).view(-1, 1, 1)
