"""Refuses values that are possible one by one and not together, before torch is loaded (request.py).

Every check takes the composed configuration as plain values and raises ConfigError.
"""

from collections.abc import Iterator
from typing import Any

from .configuration import ConfigError

# Which way a metric improves. Of others nothing is known, and any mode is taken.
BETTER = {"loss": "min", "ece": "min", "acc": "max", "f1": "max", "top5": "max"}

Config = dict[str, Any]


def check_together(config: Config) -> None:
    """
    Raises:
        ConfigError: values contradict each other.
    """
    check_end(config)
    check_metrics(config)
    check_monitors(config)
    check_validation(config)
    check_data(config["data"])
    check_optimizer(config["optimizer"])
    check_scheduler(config["scheduler"])
    check_freezing(config["model"])


def check_end(config: Config) -> None:
    trainer = config["trainer"]
    max_epochs, max_steps = trainer.get("max_epochs"), trainer.get("max_steps")
    # Lightning makes 1000 epochs of null, unless a time ends the run: by then a schedule has to be there.
    endless = max_epochs == -1 or (max_epochs is None and trainer.get("max_time") is not None)
    if endless and max_steps == -1 and not trainer.get("fast_dev_run"):
        found = "null" if max_epochs is None else max_epochs
        raise ConfigError(
            f"The run has no end that a learning-rate schedule could be laid over: trainer.max_epochs={found} and "
            "trainer.max_steps=-1. One of them has to be a number of its own. Try trainer.max_epochs=20."
        )


def check_metrics(config: Config) -> None:
    model = config["model"]
    names = _names(model.get("metrics"))
    for name in model.get("train_metrics") or []:
        if name not in (model.get("metrics") or {}):
            raise ConfigError(
                f"model.train_metrics has {name}, which is none of model.metrics. Allowed: {', '.join(names)}. "
                f"Try model.train_metrics=[{(names or [''])[0]}]."
            )


def check_monitors(config: Config) -> None:
    """Refuse a monitor that is never logged and a mode that calls the worst value the best."""
    allowed = _logged(config["model"])
    for prefix, watcher in _watchers(config):
        monitor, mode = str(watcher["monitor"]), watcher.get("mode")
        if allowed and monitor not in allowed:
            raise ConfigError(
                f"{prefix}monitor={monitor} is never logged. Allowed: {', '.join(allowed)}. "
                f"Try {prefix}monitor=val/loss."
            )
        better = BETTER.get(monitor.rpartition("/")[2], mode)
        if mode != better:
            best = "largest" if better == "max" else "smallest"
            raise ConfigError(
                f"{prefix}mode={mode} contradicts {prefix}monitor={monitor}, whose {best} value is the best. "
                f"Try {prefix}mode={better}."
            )


def _logged(model: Config) -> list[str]:
    """Name what the model logs while it trains; nothing where it does not say so."""
    if "metrics" not in model:
        return []
    names = _names(model["metrics"])
    in_training = [name for name in names if name in (model.get("train_metrics") or [])]
    return [f"val/{name}" for name in ["loss", *names]] + [f"train/{name}" for name in ["loss", *in_training]]


def _names(metrics: Config | None) -> list[str]:
    return [name for name, entry in (metrics or {}).items() if entry is not None]


def _watchers(config: Config) -> Iterator[tuple[str, Config]]:
    """Give whatever watches a metric, with what comes before its keys; the configuration's own monitor is the first."""
    yield "", config
    for name, entry in (config.get("callbacks") or {}).items():
        if isinstance(entry, dict) and entry.get("monitor") is not None:
            yield f"callbacks.{name}.", entry
    if "monitor" in config["scheduler"]:
        yield "scheduler.", config["scheduler"]


def check_validation(config: Config) -> None:
    """Refuse to wait for validation results in a run that never validates."""
    trainer = config["trainer"]
    if trainer.get("fast_dev_run") or trainer.get("overfit_batches"):
        return  # Both set the number of validation batches.
    every, max_epochs = trainer.get("check_val_every_n_epoch") or 1, trainer.get("max_epochs") or 0
    if trainer.get("limit_val_batches") == 0:
        reason, cure = "trainer.limit_val_batches=0", "trainer.limit_val_batches=1.0"
    elif 0 < max_epochs < every:
        reason = f"trainer.check_val_every_n_epoch={every} with trainer.max_epochs={max_epochs}"
        cure = "trainer.check_val_every_n_epoch=1"
    else:
        return
    _, *watchers = _watchers(config)
    for prefix, watcher in watchers:
        saves = str(watcher["_target_"]).endswith("Checkpoint")
        waits = watcher["monitor"].startswith("val/") or watcher.get("check_on_train_epoch_end") is False
        if waits and not (saves and not trainer.get("enable_checkpointing", True)):
            raise ConfigError(
                f"{reason} leaves no validation, and {prefix.rstrip('.')} waits for one. Try {cure}; to do without, "
                "try monitor=train/loss callbacks.early_stopping=null."
            )


def check_data(data: Config) -> None:
    held_out = {key: data[key] for key in ("val_fraction", "test_fraction") if data.get(key) is not None}
    if sum(held_out.values()) >= 0.95:
        raise ConfigError(
            f"data.val_fraction and data.test_fraction leave too little to train on: "
            f"{' + '.join(map(str, held_out.values()))} must stay below 0.95. "
            f"Try data.val_fraction=0.15{' data.test_fraction=0.2' if len(held_out) > 1 else ''}."
        )
    n_folds = data.get("n_folds")
    if n_folds is not None and data["fold"] >= n_folds:
        raise ConfigError(
            f"data.fold must lie between 0 and {n_folds - 1} (data.n_folds={n_folds}), got {data['fold']}. "
            "Try data.fold=0."
        )


def check_optimizer(optimizer: Config) -> None:
    if optimizer.get("nesterov") and not optimizer.get("momentum"):
        raise ConfigError(
            f"optimizer.nesterov=true needs momentum, got optimizer.momentum={optimizer.get('momentum')}. "
            "Try optimizer.nesterov=false."
        )


def check_scheduler(scheduler: Config) -> None:
    shares = {key: scheduler[key] for key in ("warmup_fraction", "decay_fraction") if key in scheduler}
    if sum(shares.values()) > 1:
        found = " and ".join(f"scheduler.{key}={share}" for key, share in shares.items())
        raise ConfigError(
            f"{found} exceed the run: together they must stay within 1. "
            "Try scheduler.warmup_fraction=0.05 scheduler.decay_fraction=0.2."
        )


def check_freezing(model: Config) -> None:
    if model.get("unfreeze_epoch") is not None and not model.get("freeze_backbone"):
        raise ConfigError(
            f"model.unfreeze_epoch={model['unfreeze_epoch']} unfreezes nothing: model.freeze_backbone=false. "
            "Try model.freeze_backbone=true."
        )
