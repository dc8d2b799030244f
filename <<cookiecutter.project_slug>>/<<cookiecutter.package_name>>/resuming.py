"""Turns `resume=` into a request to go on in the run's own directory. Used by request.py; loads no torch."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

from .comparison import written_value
from .configuration import CONFIG_DIR, ConfigError, find_checkpoint, plain, shown

# What made a run's weights what they are cannot change on the way, except for the second line's parts of it.
FIXED = ("seed", "monitor", "mode", "data", "model", "optimizer", "scheduler", "trainer.accumulate_grad_batches",
         "callbacks.ema")  # fmt: skip
FREE = ("data.cache", "data.index", "data.num_workers", "data.pin_memory", "data.root", "model.channels_last",
        "model.compile", "model.gradient_checkpointing", "model.init_from", "optimizer.fused")  # fmt: skip
LENGTH = ("max_epochs", "max_steps", "max_time")
# Of the command line and not of the run.
PLACE = ("hydra.run.dir", "name", "resume", "run_id")
# In the run directory: what was asked, and what came of it.
OVERRIDES, CONFIG = Path(".hydra") / "overrides.yaml", Path("config.yaml")


def go_on(overrides: list[str], compose: Callable[[list[str]], DictConfig]) -> list[str]:
    """Give the overrides with which a run goes on: its own, then the new ones, and `resume=` as a checkpoint file.

    `resume=auto` stays where the run has no checkpoint yet: it begins, or begins again. Without `resume=`, nothing
    changes.

    Raises:
        ConfigError: there is nothing to resume, it is damaged, or a new override would make it another run.
        SystemExit: the run is finished; exit code 0, or 1 if it ended with errors.
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
        if elsewhere and _has_begun(run_dir):
            raise ConfigError(
                f"resume={shown(run_dir)} goes on in the run's own directory. Leave out {sorted(elsewhere)[0]}=."
            )
    if not _has_begun(run_dir):
        # A run that has not begun, or a checkpoint on its own, from which a new run starts.
        return overrides if asked.resume == "auto" else [*_without(overrides, ("resume",)), f"resume={checkpoint}"]
    own, place = _read_request(run_dir)
    merged = _merge(own, _without(overrides, PLACE), place, compose)
    before, after = compose([*own, *place]), compose(merged)
    refuse_another_run(plain(before, resolve=False), plain(after, resolve=False), run_dir)
    results = _read_results(run_dir)
    if results is not None:
        refuse_shorter_run(after, epochs=results["epochs"], steps=results["steps"])
        if all(before.trainer[key] == after.trainer[key] for key in LENGTH):
            _say_that_it_is_finished(run_dir, results, before)
    return [*merged, f"resume={checkpoint if checkpoint.is_file() else 'auto'}"]


def _has_begun(run_dir: Path) -> bool:
    return all((run_dir / name).is_file() for name in (OVERRIDES, CONFIG))


def _read_request(run_dir: Path) -> tuple[list[str], list[str]]:
    """Give the overrides that made a run what it is, and those that say where it lies."""
    own = _read(run_dir / OVERRIDES, lambda text: yaml.load(text, Loader=yaml.BaseLoader))
    if not isinstance(own, list) or not all(isinstance(text, str) for text in own):
        raise _damaged(run_dir / OVERRIDES, "it is no list of overrides")
    config = _read(run_dir / CONFIG, lambda text: yaml.load(text, Loader=yaml.BaseLoader))
    names = {key: config.get(key) if isinstance(config, dict) else None for key in ("name", "run_id")}
    if not all(isinstance(name, str) and "${" not in name for name in names.values()):
        raise _damaged(run_dir / CONFIG, "it names no run")
    # How Hydra works is not the run's: out of a stranger's run directory it could run code before anything is checked.
    own = [text for name, text in _named(own).items() if "hydra" not in name]
    return _without(own, PLACE), [*(f"{key}={name}" for key, name in names.items()), f"hydra.run.dir={run_dir}"]


def _merge(own: list[str], new: list[str], place: list[str], compose: Callable[[list[str]], DictConfig]) -> list[str]:
    """Lay new overrides over a run's own. Under a group that is chosen anew, own ones stay where their keys do."""
    typed = tuple(_named(new))
    added = {name for name, text in _named(own).items() if text.startswith("+")}
    # What was added once is still an addition, and is deleted by leaving it out.
    new = [
        f"++{text}" if name in added and text[0] not in "+~" else text
        for name, text in _named(new).items()
        if not (name in added and text.startswith("~"))
    ]
    groups = [folder.name for folder in CONFIG_DIR.iterdir() if folder.is_dir()]
    anew = set(groups) if {"debug", "experiment"} & _named(new).keys() else _named(new).keys() & set(groups)
    chosen = tuple(f"{name}." for name in anew)
    kept = _without(own, typed)
    below = [text for text in kept if text.lstrip("+~").startswith(chosen)]
    if below:
        config = compose([*(text for text in kept if text not in below), *new, *place])
        made = {name.removesuffix("._target_") for name in added if name.endswith("._target_")}
        kept = [text for text in kept if text not in below or _has_place(text, config, made)]
    return [*kept, *new, *place]


def _has_place(override: str, config: DictConfig, made: set[str]) -> bool:
    """
    Args:
        made: entries that other overrides add.
    """
    key = override.partition("=")[0]
    parent, _, name = key.lstrip("+~").rpartition(".")
    found = OmegaConf.select(config, parent)
    return parent in made or (isinstance(found, DictConfig) and (key.startswith("+") or name in found))


def _read_results(run_dir: Path) -> dict[str, Any] | None:
    """Give what a run left at its end; None before."""
    file = run_dir / "results.json"
    if not file.exists():
        return None
    results = _read(file, json.loads)
    kinds = {"epochs": int, "steps": int, "errors": list}
    if not isinstance(results, dict) or not all(isinstance(results.get(key), kind) for key, kind in kinds.items()):
        raise _damaged(file, "it is no result of a run")
    return results


def _read(file: Path, parse: Callable[[str], Any]) -> Any:
    try:
        return parse(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise _damaged(file, " ".join(str(error).split())) from error


def _damaged(file: Path, reason: str) -> ConfigError:
    cure = "Move it away to go on without it" if file.name == "results.json" else "Bring back what it was"
    run_dir = file.parent if file.parent.name != ".hydra" else file.parent.parent
    return ConfigError(
        f"{shown(file)} is damaged: {reason}. {cure}, or start a new run from the weights: "
        f"model.init_from={shown(run_dir)}."
    )


def _say_that_it_is_finished(run_dir: Path, results: dict[str, Any], config: DictConfig) -> None:
    if results["errors"]:
        print(
            f"\nError: {shown(run_dir)} is finished, with errors: {'; '.join(map(str, results['errors']))} "
            f"Its checkpoint can still be exported: python export.py checkpoint={shown(run_dir)}",
            file=sys.stderr,
        )
        sys.exit(1)
    more = f"trainer.max_epochs={2 * max(1, config.trainer.max_epochs or 1)}"
    print(f"{shown(run_dir)} is finished: there is nothing to do. To train on, type a new length, such as {more}.")
    sys.exit(0)


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
    """Give run directory and checkpoint file, which a run may lack that has begun; of a lone checkpoint the folder."""
    path = Path(given).expanduser().absolute()
    if path.is_dir():
        path = path.resolve()
        last, best = (path / "checkpoints" / f"{name}.ckpt" for name in ("last", "best"))
        if last.is_file() or (_has_begun(path) and not best.is_file()):
            return path, last
        return path, find_checkpoint(path)
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
