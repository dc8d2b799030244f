"""Learning-rate schedules over the run's real number of optimizer steps (configs/scheduler)."""

from torch.optim import Optimizer
from torch.optim.lr_scheduler import ConstantLR, CosineAnnealingLR, LinearLR, LRScheduler, SequentialLR

from ..configuration import ConfigError


def constant(optimizer: Optimizer, total_steps: int) -> LRScheduler:
    return ConstantLR(optimizer, factor=1.0)


def warmup_cosine(
    optimizer: Optimizer, total_steps: int, warmup_fraction: float, final_lr_fraction: float = 0.0
) -> LRScheduler:
    """Rise linearly to the optimizer's rate, then fall along half a cosine (Loshchilov and Hutter, 2017).

    Args:
        warmup_fraction: share of `total_steps`, 0 to 1.
        final_lr_fraction: the last rate as a share of the optimizer's.

    Raises:
        ConfigError: a fraction lies outside its range.
    """
    if not 0 <= warmup_fraction < 1:
        raise ConfigError(
            f"scheduler.warmup_fraction must be at least 0 and below 1, got {warmup_fraction}. "
            "Try scheduler.warmup_fraction=0.05."
        )
    warmup_steps = round(warmup_fraction * total_steps)
    final_lr = final_lr_fraction * optimizer.param_groups[0]["lr"]
    cosine = CosineAnnealingLR(optimizer, T_max=max(1, total_steps - warmup_steps), eta_min=final_lr)
    if warmup_steps == 0:
        return cosine
    # Step k of n runs at k/n of the rate, so that the first step is not wasted at zero.
    warmup = LinearLR(optimizer, start_factor=1 / (warmup_steps + 1), total_iters=warmup_steps)
    return SequentialLR(optimizer, [warmup, cosine], milestones=[warmup_steps])
