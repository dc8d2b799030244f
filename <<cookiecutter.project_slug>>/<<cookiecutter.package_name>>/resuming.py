"""Turns `resume=` into a request to go on in the run's own directory. Used by request.py; loads no torch."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

from .comparison import written_value
from .configuration import ConfigError, find_checkpoint, plain, shown

# What made a run's weights what they are cannot change on the way, except for the second line's parts of it.
FIXED = ("seed", "monitor", "mode", "data", "model", "optimizer", "scheduler", "trainer.accumulate_grad_batches")
FREE = ("data.cache", "data.index", "data.num_workers", "data.pin_memory", "data.root", "model.channels_last",
        "model.compile", "model.gradient_checkpointing", "model.init_from", "optimizer.fused")  # fmt: skip
LENGTH = ("max_epochs", "max_steps", "max_time")
# Of the command line and not of the run.
PLACE = ("hydra.run.dir", "name", "resume", "run_id")


def go_on(overrides: list[str], compose: Callable[[list[str]], DictConfig]) -> list[str]:
    """Give the overrides with which a run goes on: its own, then the new ones, and `resume=` as a checkpoint file.

    `resume=auto` stays where the run has no checkpoint yet: it begins, or begins again. Without `resume=`, nothing
    changes.

    Raises:
        ConfigError: there is nothing to resume, or a new override would make it another run.
        SystemExit: the run is finished; exit code 0.
    """
    # The new overrides may only make sense on top of the run's own.
    asked = compose([text for name, text in _named(overrides).items() if name in (*PLACE, "debug", "experiment")])
    if asked.resume is None:
        return overrides
    if asked.resume == "auto":
        if not {"run_id", "hydra.run.dir"} & _named(overrides).keys():
            raise ConfigError("resume=auto has to know which run. Try run_id=trial-1 resume=auto.")
        run_dir = Path(asked.hydra.run.dir).absolute()
        checkpoint = run_dir / "checkpoints" / "last.ckpt"
    else:
        run_dir, checkpoint = _find(str(asked.resume))
        elsewhere = {"run_id", "name", "hydra.run.dir"} & _named(overrides).keys()
        if elsewhere and (run_dir / "config.yaml").is_file():
            raise ConfigError(
                f"resume={shown(run_dir)} goes on in the run's own directory. Leave out {sorted(elsewhere)[0]}=."
            )
    files = (run_dir / ".hydra" / "overrides.yaml", run_dir / "config.yaml")
    if not all(file.is_file() for file in files):
        # A run that has not begun, or a checkpoint on its own, from which a new run starts.
        return overrides if asked.resume == "auto" else [*_without(overrides, ("resume",)), f"resume={checkpoint}"]
    own, stored = yaml.safe_load(files[0].read_text(encoding="utf-8")), OmegaConf.load(files[1])
    place = [f"name={stored.name}", f"run_id={stored.run_id}", f"hydra.run.dir={run_dir}"]
    new = _without(overrides, PLACE)
    merged = [*_without(own, (*PLACE, *_named(new))), *new, *place]
    before, after = compose([*_without(own, PLACE), *place]), compose(merged)
    refuse_another_run(plain(before, resolve=False), plain(after, resolve=False), run_dir)
    results = run_dir / "results.json"
    if results.is_file():
        made = json.loads(results.read_text(encoding="utf-8"))
        refuse_shorter_run(after, epochs=made["epochs"], steps=made["steps"])
    same_length = all(before.trainer[key] == after.trainer[key] for key in LENGTH)
    if results.is_file() and same_length:
        more = f"trainer.max_epochs={2 * max(1, before.trainer.max_epochs or 1)}"
        print(f"{shown(run_dir)} is finished: there is nothing to do. To train on, type a new length, such as {more}.")
        sys.exit(0)
    return [*merged, f"resume={checkpoint if checkpoint.is_file() else 'auto'}"]


def refuse_shorter_run(asked: DictConfig, epochs: int, steps: int) -> None:
    """
    Args:
        epochs: that the run has trained to their end.
        steps: of the optimizer that it has made.

    Raises:
        ConfigError: the length that is asked for lies behind the run.
    """
    for key, unit, done in (("max_epochs", "epoch", epochs), ("max_steps", "step", steps)):
        if asked.trainer[key] is not None and 0 <= asked.trainer[key] < done:
            raise ConfigError(
                f"trainer.{key}={asked.trainer[key]} lies behind the run, which is at {unit} {done}. "
                f"Try trainer.{key}={2 * done}."
            )


def refuse_another_run(before: dict[str, Any], after: dict[str, Any], source: Path, added: bool = True) -> None:
    """
    Args:
        added: look at keys that only `after` has, too. To an older checkpoint they may have come with the code.

    Raises:
        ConfigError: a value that belongs to the run differs.
    """
    for key in FIXED:
        for name, old, new in _differences(_select(before, key), _select(after, key), key, added):
            if not name.startswith(FREE):
                raise ConfigError(
                    f"{shown(source)} was trained with {name}={written_value(old)} and cannot go on with "
                    f"{written_value(new)}. Set {name} as it was, or start a new run from its weights: "
                    f"model.init_from={shown(source)}."
                )


def _find(given: str) -> tuple[Path, Path]:
    """Give run directory and checkpoint file; for a checkpoint on its own, the folder that holds it."""
    path = Path(given).expanduser().absolute()
    if path.is_dir():
        path = path.resolve()
        last = path / "checkpoints" / "last.ckpt"
        return path, last if last.is_file() else find_checkpoint(path)
    file = find_checkpoint(path)
    return (file.parent.parent if file.parent.name == "checkpoints" else file.parent), file


def _named(overrides: list[str]) -> dict[str, str]:
    return {text.partition("=")[0].lstrip("+~"): text for text in overrides}


def _without(overrides: list[str], names: tuple[str, ...]) -> list[str]:
    return [text for name, text in _named(overrides).items() if name not in names]


def _select(config: dict[str, Any], key: str) -> Any:
    value: Any = config
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _differences(old: Any, new: Any, name: str, added: bool) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in {**old, **new} if added else old:
            yield from _differences(old.get(key), new.get(key), f"{name}.{key}", added)
    elif old != new:
        yield name, old, new
