"""Settles the settings that depend on the machine: what `auto` and a precision mean where this process runs."""

import logging
import os
import socket

import torch
from omegaconf import DictConfig, OmegaConf

from .configuration import ConfigError, plain, whole_number

log = logging.getLogger(__name__)


def fit_to_machine(config: DictConfig) -> DictConfig:
    """Give a copy of the configuration in which nothing depends on the machine any more; log each decision.

    Raises:
        ConfigError: the machine lacks what the request cannot do without.
    """
    settled: DictConfig = OmegaConf.create(plain(config))
    trainer = settled.trainer
    cuda, mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    if not cuda:
        # Lightning sets it, and with it Adam looks for a GPU driver on the disk before every step.
        os.environ.pop("PYTORCH_NVML_BASED_CUDA_CHECK", None)
    if trainer.accelerator == "auto":
        trainer.accelerator = "cuda" if cuda else "mps" if mps else "cpu"
        if trainer.accelerator == "mps" and str(trainer.strategy).startswith("ddp"):
            trainer.accelerator = "cpu"
            log.info("strategy=%s does not run on Apple's GPU: using the CPU", trainer.strategy)
    if str(trainer.strategy).startswith("fsdp") and trainer.accelerator not in ("cuda", "gpu"):
        raise ConfigError(
            f"strategy={trainer.strategy} shares a model out over CUDA devices; this run uses {trainer.accelerator}. "
            "Try strategy=ddp."
        )
    if str(trainer.devices) in ("auto", "-1"):
        trainer.devices = torch.cuda.device_count() if trainer.accelerator in ("cuda", "gpu") else 1
    if trainer.accelerator in ("cuda", "gpu"):
        torch.set_float32_matmul_precision(settled.get("matmul_precision", "highest"))
    check_tasks(trainer)
    check_port(trainer)
    on_cpu = trainer.accelerator == "cpu"
    cores = os.cpu_count() or 1
    if on_cpu and isinstance(trainer.devices, int) and trainer.devices > max(2, cores):
        raise ConfigError(
            f"trainer.devices={trainer.devices} would start so many processes on {cores} cores. Allowed: up to one for "
            f"each core. Try trainer.devices={cores}."
        )
    if trainer.precision == "16-mixed" and on_cpu:
        trainer.precision = "bf16-mixed"
        log.info("precision=16-mixed needs a GPU: using bf16-mixed")
    if trainer.precision == "16-true" and "Adam" in settled.optimizer._target_ and "eps" not in settled.optimizer:
        # Adam's usual 1e-8 is 0 in fp16: the first step would divide by it and end in NaN.
        settled.optimizer.eps = 1e-4
        log.info("precision=16-true: optimizer.eps=0.0001, since Adam's own is 0 in fp16")
    if settled.optimizer.get("fused") == "auto":
        # A fused optimizer unscales gradients by itself in mixed precision, and Lightning could not clip them any more.
        clipped = "mixed" in trainer.precision and trainer.gradient_clip_val
        half = trainer.precision in ("16-true", "bf16-true")
        settled.optimizer.fused = not clipped and not half and trainer.accelerator != "mps"
    if trainer.get("sync_batchnorm") == "auto":
        # SyncBatchNorm has no CPU implementation: it would end `trainer=ddp` there.
        trainer.sync_batchnorm = not on_cpu and trainer.devices != 1
    if settled.model.get("channels_last") == "auto":
        # Convolutions are up to 1.5 times as fast in it, on a CPU too; networks without them stay as they are.
        settled.model.channels_last = trainer.accelerator != "mps"
    log.info("machine: accelerator=%s devices=%s precision=%s", trainer.accelerator, trainer.devices, trainer.precision)
    return settled


def check_tasks(trainer: DictConfig) -> None:
    """
    Raises:
        ConfigError: SLURM started another number of tasks than there are to be processes.
    """
    tasks = whole_number("SLURM_NTASKS", 1) if "SLURM_PROCID" in os.environ else 1
    processes = count_processes(trainer)
    if tasks > 1 and tasks != processes:
        raise ConfigError(
            f"SLURM started {tasks} tasks, and trainer.devices={trainer.devices} on trainer.num_nodes="
            f"{trainer.num_nodes} makes {processes}: each task would train alone, or on a part of "
            f"the data. Try strategy=ddp trainer.devices={tasks // max(1, trainer.num_nodes)}."
        )


def check_port(trainer: DictConfig) -> None:
    """
    Raises:
        ConfigError: the processes that this one is to start could not meet at MASTER_PORT.
    """
    launched = any(variable in os.environ for variable in ("LOCAL_RANK", "TORCHELASTIC_RUN_ID", "SLURM_NTASKS"))
    alone = trainer.strategy == "auto" and count_processes(trainer) == 1
    # Only the first node listens.
    if "MASTER_PORT" not in os.environ or launched or alone or whole_number("NODE_RANK") > 0:
        return
    port = whole_number("MASTER_PORT")
    reason = _why_not(port)
    if reason:
        raise ConfigError(
            f"MASTER_PORT={port} stands in the environment, and the processes of this run cannot meet there: {reason}. "
            "A free port between 1024 and 65535 is allowed; without the variable one is found. Try: unset MASTER_PORT"
        )


def _why_not(port: int) -> str | None:
    if not 0 < port < 65536:
        return "it is no port"
    try:
        socket.create_server(("", port)).close()
    except OSError as error:
        return os.strerror(error.errno or 0)
    return None


def count_processes(trainer: DictConfig) -> int:
    """Count those of all nodes.

    Raises:
        ConfigError: `trainer.devices` is text that names no devices.
    """
    chosen = trainer.devices
    if isinstance(chosen, str):
        # "2" is two devices, "0,1" are those with these numbers, "2," is one.
        numbers = chosen.replace(" ", "").split(",")
        if not numbers[0] or not all(number.isdecimal() for number in numbers if number):
            raise ConfigError(
                f"trainer.devices={chosen} names no devices. Allowed: auto, how many, or their numbers. "
                "Try trainer.devices=auto."
            )
        chosen = [number for number in numbers if number] if len(numbers) > 1 else int(numbers[0])
    count: int = chosen if isinstance(chosen, int) else len(chosen)
    return count * int(trainer.num_nodes)
