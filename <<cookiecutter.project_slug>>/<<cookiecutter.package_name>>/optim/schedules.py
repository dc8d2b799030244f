"""Learning-rate schedules over the run's real number of optimizer steps (configs/scheduler).

Each function gives what Lightning takes from `configure_optimizers`: torch's schedule and when it is stepped. Steps
count from 0; a warm-up of w steps runs step k at (k + 1) / (w + 1) of the rate, so that no step is wasted at zero.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

from torch.optim import Optimizer
from torch.optim import lr_scheduler as torch_schedules
from torch.optim.lr_scheduler import ConstantLR, CosineAnnealingLR, LinearLR, LRScheduler, PolynomialLR

from ..configuration import ConfigError

Schedule = dict[str, Any]


def constant(optimizer: Optimizer, total_steps: int, warmup_fraction: float = 0.0) -> Schedule:
    return _with_warmup(optimizer, total_steps, warmup_fraction, lambda steps: ConstantLR(optimizer, factor=1.0))


def cosine(
    optimizer: Optimizer, total_steps: int, warmup_fraction: float = 0.0, final_lr_fraction: float = 0.0
) -> Schedule:
    """Fall along half a cosine (Loshchilov and Hutter, 2017).

    Args:
        warmup_fraction: share of `total_steps`, at least 0 and below 1.
        final_lr_fraction: the last rate as a share of the optimizer's.

    Raises:
        ConfigError: a fraction lies outside its range.
    """
    final_lr = _final_lr(optimizer, final_lr_fraction)
    return _with_warmup(
        optimizer, total_steps, warmup_fraction, lambda steps: CosineAnnealingLR(optimizer, steps, final_lr)
    )


def cosine_restarts(
    optimizer: Optimizer, total_steps: int, n_cycles: int, warmup_fraction: float = 0.0, final_lr_fraction: float = 0.0
) -> Schedule:
    """Fall along half a cosine `n_cycles` times (Loshchilov and Hutter, 2017)."""
    if n_cycles < 1:
        raise ConfigError(f"scheduler.n_cycles must be at least 1, got {n_cycles}. Try scheduler.n_cycles=3.")
    final_lr = _final_lr(optimizer, final_lr_fraction)

    def restarts(steps: int) -> LRScheduler:
        cycle = -(-steps // n_cycles)
        return torch_schedules.CosineAnnealingWarmRestarts(optimizer, T_0=cycle, eta_min=final_lr)

    return _with_warmup(optimizer, total_steps, warmup_fraction, restarts)


def polynomial(optimizer: Optimizer, total_steps: int, power: float, warmup_fraction: float = 0.0) -> Schedule:
    """Fall to zero as the remaining share of the run to the power of `power`."""
    return _with_warmup(
        optimizer, total_steps, warmup_fraction, lambda steps: PolynomialLR(optimizer, steps, power=power)
    )


def wsd(optimizer: Optimizer, total_steps: int, warmup_fraction: float, decay_fraction: float) -> Schedule:
    """Warm up, stay, then fall linearly to zero (Hu et al., 2024).

    Args:
        decay_fraction: share of `total_steps` at the end over which the rate falls.
    """
    warmup_steps = round(_share("warmup_fraction", warmup_fraction) * total_steps)
    decay_steps = round(_share("decay_fraction", decay_fraction) * total_steps)
    if warmup_steps + decay_steps > total_steps:
        raise ConfigError(
            f"scheduler.warmup_fraction and scheduler.decay_fraction must not exceed 1 together, got {warmup_fraction} "
            f"and {decay_fraction}. Try scheduler.warmup_fraction=0.05 scheduler.decay_fraction=0.2."
        )
    stay = ConstantLR(optimizer, factor=1.0)
    decay = LinearLR(optimizer, start_factor=1.0, end_factor=0.0, total_iters=max(1, decay_steps))
    stable_steps = total_steps - warmup_steps - decay_steps
    phases = [(warmup_steps, _warmup(optimizer, warmup_steps)), (stable_steps, stay), (decay_steps, decay)]
    return _in_turn(optimizer, phases)


def one_cycle(optimizer: Optimizer, total_steps: int, warmup_fraction: float) -> Schedule:
    """Rise to the optimizer's rate along a cosine and fall far below it along another (Smith and Topin, 2018)."""
    _share("warmup_fraction", warmup_fraction)
    rates = [group["lr"] for group in optimizer.param_groups]
    return _per_step(
        # Momentum is the optimizer's own business here.
        torch_schedules.OneCycleLR(
            optimizer, max_lr=rates, total_steps=total_steps, pct_start=float(warmup_fraction), cycle_momentum=False
        )
    )


def step(optimizer: Optimizer, total_steps: int, step_size: int, gamma: float) -> Schedule:
    """Multiply the rate by `gamma` every `step_size` epochs."""
    return _per_epoch(torch_schedules.StepLR(optimizer, step_size, gamma))


def multistep(optimizer: Optimizer, total_steps: int, milestones: Sequence[int], gamma: float) -> Schedule:
    """Multiply the rate by `gamma` at each of the epochs `milestones`."""
    return _per_epoch(torch_schedules.MultiStepLR(optimizer, list(milestones), gamma))


def exponential(optimizer: Optimizer, total_steps: int, gamma: float) -> Schedule:
    """Multiply the rate by `gamma` every epoch."""
    return _per_epoch(torch_schedules.ExponentialLR(optimizer, gamma))


def reduce_on_plateau(
    optimizer: Optimizer, total_steps: int, monitor: str, mode: str, frequency: int, factor: float, patience: int
) -> Schedule:
    """Multiply the rate by `factor` once `monitor` has not improved for `patience` validation runs.

    Args:
        frequency: epochs between validation runs: the monitor has no new value in the others.
    """
    plateau = torch_schedules.ReduceLROnPlateau(optimizer, mode=mode, factor=factor, patience=patience)  # type: ignore[arg-type]
    return {"scheduler": plateau, "interval": "epoch", "frequency": frequency, "monitor": monitor}


def lay_over(build: Callable[..., Schedule], optimizer: Optimizer, rates: list[float], steps: int, done: int) -> Any:
    """Give torch's schedule for a run of `steps` of which `done` are made, as if it had been so long from the start.

    Args:
        rates: of each group of the optimizer at the full rate.
    """
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
        group.pop("initial_lr", None)
    schedule = build(optimizer, total_steps=steps)["scheduler"]
    with warnings.catch_warnings():
        # No optimizer step lies between these, and none should.
        warnings.simplefilter("ignore")
        for _ in range(done):
            schedule.step()
    return schedule


def _with_warmup(
    optimizer: Optimizer, total_steps: int, warmup_fraction: float, after: Callable[[int], LRScheduler]
) -> Schedule:
    warmup_steps = round(_share("warmup_fraction", warmup_fraction) * total_steps)
    rest = max(1, total_steps - warmup_steps)
    return _in_turn(optimizer, [(warmup_steps, _warmup(optimizer, warmup_steps)), (rest, after(rest))])


def _warmup(optimizer: Optimizer, steps: int) -> LRScheduler:
    return LinearLR(optimizer, start_factor=1 / (steps + 1), total_iters=max(1, steps))


def _in_turn(optimizer: Optimizer, phases: list[tuple[int, LRScheduler]]) -> Schedule:
    """Run each schedule for its number of steps; one of no steps is left out."""
    kept = [(steps, schedule) for steps, schedule in phases if steps > 0]
    milestones = [sum(steps for steps, _ in kept[: number + 1]) for number in range(len(kept) - 1)]
    return _per_step(torch_schedules.SequentialLR(optimizer, [schedule for _, schedule in kept], milestones))


def _per_step(schedule: LRScheduler) -> Schedule:
    return {"scheduler": schedule, "interval": "step"}


def _per_epoch(schedule: LRScheduler) -> Schedule:
    return {"scheduler": schedule, "interval": "epoch"}


def _final_lr(optimizer: Optimizer, fraction: float) -> float:
    return _share("final_lr_fraction", fraction) * float(optimizer.param_groups[0]["lr"])


def _share(name: str, value: float) -> float:
    if not 0 <= value < 1:
        raise ConfigError(f"scheduler.{name} must be at least 0 and below 1, got {value}. Try scheduler.{name}=0.05.")
    return value
