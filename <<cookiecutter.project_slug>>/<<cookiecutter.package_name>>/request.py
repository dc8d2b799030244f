"""Checks a command line against the shipped configuration before Hydra starts and torch is loaded.

Every door calls `start`. A wrong option, key or type ends in one message and exit code 2, and leaves nothing on disk.
"""

import difflib
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from .configuration import CONFIG_DIR, RUN_DIR_VARIABLE, ConfigError, find_checkpoint, is_child_process, refuse

# Groups whose files override others. What they write is checked against the files they override.
PRESETS = ("debug", "experiment")


def start(main: Callable[[], Any], config_name: str) -> None:
    """Check the command line, then run the door under Hydra."""
    sys.argv[1:] = [switch_off(argument) for argument in sys.argv[1:]]
    arguments = get_args_parser().parse_args()
    shows_something = any((arguments.help, arguments.hydra_help, arguments.cfg, arguments.info))
    try:
        if is_child_process():
            _continue_in_the_run_directory()
        elif not (shows_something or arguments.shell_completion or arguments.config_path or arguments.config_dir):
            if config_name != "train":
                sys.argv[1:] = add_to_checkpoint(config_name, sys.argv[1:])
                arguments = get_args_parser().parse_args()
            for overrides in single_requests(arguments.overrides, arguments.multirun):
                check(arguments.config_name or config_name, overrides)
    except ConfigError as error:
        refuse(error)
    main()


def switch_off(argument: str) -> str:
    """Write `export=null` the way Hydra takes it for a group; a group that a run cannot do without stays as it is."""
    group = argument.removesuffix("=null")
    return f"~{group}" if group != argument and group in _optional_groups() else argument


def _optional_groups() -> set[str]:
    page = yaml.safe_load((CONFIG_DIR / "train.yaml").read_text(encoding="utf-8"))
    names = (name for entry in page["defaults"] if isinstance(entry, dict) for name in entry)
    return {name.removeprefix("optional ") for name in names if name.startswith("optional ")}


def _continue_in_the_run_directory() -> None:
    # Lightning starts the other ranks with this command line and a quoted path that some characters would break.
    own = ("hydra.run.dir=", "hydra.job.name=")
    kept = [argument for argument in sys.argv[1:] if not argument.startswith(own)]
    # One process speaks for all; the others are heard when something is wrong.
    speak = "hydra.job_logging.root.level=WARNING"
    sys.argv[1:] = [*kept, f"hydra.run.dir=${{oc.env:{RUN_DIR_VARIABLE}}}", speak]


def add_to_checkpoint(config_name: str, arguments: list[str]) -> list[str]:
    """Mark overrides of keys that a door's own page lacks as additions; the flow merges them into the checkpoint's."""
    own = yaml.safe_load((CONFIG_DIR / f"{config_name}.yaml").read_text(encoding="utf-8"))
    marked = []
    for argument in arguments:
        key = re.match(r"[A-Za-z_][\w/.@-]*(?==)", argument)
        if key is None or key[0].split(".")[0] in {*own, "strategy"} - {"trainer"}:
            marked.append(argument)
        else:
            is_group = (CONFIG_DIR / key[0]).is_dir()
            marked.append(f"{'+' if is_group else '++'}{argument}")
    return marked


def single_requests(overrides: list[str], multirun: bool) -> Iterator[list[str]]:
    """Give the command lines to check: one, or under `--multirun` one for each value that is swept over."""
    parsed = parse(overrides)
    if not multirun or not any(override.is_sweep_override() for override in parsed):
        yield overrides
        return
    choices = [list(override.sweep_string_iterator()) if override.is_sweep_override() else None for override in parsed]

    def written(position: int, choice: int) -> str:
        values = choices[position]
        if values is None:
            return overrides[position]
        return f"{parsed[position].input_line.split('=', 1)[0]}={values[min(choice, len(values) - 1)]}"

    for choice in range(max(len(values) for values in choices if values)):
        yield [written(position, choice) for position in range(len(overrides))]


def parse(overrides: list[str]) -> list[Override]:
    try:
        return OverridesParser.create().parse_overrides(overrides)
    except HydraException as error:
        raise ConfigError(
            f"The command line could not be read: {str(error).splitlines()[0]} Overrides look like key=value; "
            "quote a value with blanks or special characters: 'name=\"my run\"'."
        ) from error


def check(config_name: str, overrides: list[str]) -> None:
    """Compose what was asked and compare it with what is shipped.

    Raises:
        ConfigError: an option, key, type or value is wrong.
    """
    asked = _compose(config_name, overrides)
    if config_name == "train":
        choices = OmegaConf.to_container(asked.hydra.runtime.choices)
        shipped = _compose(
            config_name, [f"{group}={option}" for group, option in choices.items() if _is_shipped(group, option)]
        )
        compare(asked, shipped)
        if asked.resume is not None:
            raise ConfigError(
                f"resume={asked.resume} is not built yet: a run cannot be continued. Start a new run without resume=."
            )
        for key in ("name", "run_id"):
            # Both name a folder below logs/.
            if not re.fullmatch(r"\w[\w. -]*", str(asked[key])):
                raise ConfigError(
                    f"{key} must consist of letters, digits, '-', '_' and '.', got {asked[key]}. Try {key}=trial-1."
                )
        _refuse_existing_run(Path(asked.hydra.run.dir))
    else:
        if OmegaConf.is_missing(asked, "checkpoint"):
            raise ConfigError("No checkpoint was given. A run directory or a file is allowed. Try checkpoint=logs/latest.")
        find_checkpoint(asked.checkpoint)


def _is_shipped(group: str, option: Any) -> bool:
    return option is not None and not group.startswith("hydra/") and "@" not in group and group not in PRESETS


def _compose(config_name: str, overrides: list[str]) -> DictConfig:
    try:
        with initialize_config_dir(config_dir=str(CONFIG_DIR), version_base="1.3"):
            return compose(config_name, overrides, return_hydra_config=True)
    except MissingConfigException as error:
        raise ConfigError(_unknown_option(error, overrides)) from error
    except (ConfigCompositionException, OmegaConfBaseException) as error:
        raise ConfigError(_unknown_key(error, config_name)) from error
    except ValueError as error:
        raise ConfigError(_number_for_a_group(error, overrides)) from error
    except HydraException as error:
        raise ConfigError(f"{error}. `python train.py --help` lists what can be set.") from error


def _unknown_option(error: MissingConfigException, overrides: list[str]) -> str:
    missing = error.missing_cfg_file or ""
    group, _, option = missing.rpartition("/")
    options = list(error.options or [])
    if not options:
        return f"{error}. `python train.py --help` lists what can be set."
    return _choice_message(group, option, options)


def _choice_message(group: str, option: str, options: list[str]) -> str:
    # `precision=32` means 32-true: a beginning counts as near.
    near = [name for name in options if name.startswith(option)] or difflib.get_close_matches(option, options, 1, 0.0)
    return f"{group}={option} does not exist. Allowed: {', '.join(sorted(options))}. Try {group}={near[0]}."


def _number_for_a_group(error: ValueError, overrides: list[str]) -> str:
    for override in parse(overrides):
        folder = CONFIG_DIR / override.key_or_group
        if folder.is_dir() and not isinstance(override.value(), str | list):
            options = [file.stem for file in folder.glob("*.yaml")]
            return _choice_message(override.key_or_group, written_value(override.value()), options)
    return f"{error}. `python train.py --help` lists what can be set."


def _unknown_key(error: Exception, config_name: str) -> str:
    key = getattr(error.__cause__, "full_key", None) or getattr(error, "full_key", None)
    if not key:
        return f"{error}. `python train.py --help` lists what can be set."
    return unknown_key_message(key, _compose(config_name, []))


def unknown_key_message(key: str, known: DictConfig) -> str:
    """Name the nearest existing key: first among its neighbours, then anywhere by its last part."""
    keys = sorted(set(_all_keys(OmegaConf.masked_copy(known, [k for k in known if k != "hydra"]))))
    parent, _, last = key.rpartition(".")
    neighbours = [other for other in keys if other.rpartition(".")[0] == parent]
    near = difflib.get_close_matches(key, neighbours, 1)
    if not near:
        by_last = {other.rpartition(".")[2]: other for other in reversed(keys)}
        near = [by_last[name] for name in difflib.get_close_matches(last, list(by_last), 1)]
    if near:
        value = OmegaConf.select(known, near[0])
        if isinstance(value, DictConfig):
            files = sorted((CONFIG_DIR / near[0]).glob("*.yaml"))
            value = files[0].stem if files else "null"
        shown = written_value(value)
        return f"{key} does not exist. The nearest name is {near[0]}. Try {near[0]}={shown}."
    allowed = ", ".join(other.rpartition(".")[2] for other in neighbours) or ", ".join(k for k in keys if "." not in k)
    return f"{key} does not exist. Allowed here: {allowed}. Try python train.py --cfg job to see every key."


def _all_keys(node: DictConfig, prefix: str = "") -> Iterator[str]:
    for key in node:
        yield f"{prefix}{key}"
        value = node._get_node(key)
        if isinstance(value, DictConfig) and not value._is_interpolation() and not value._is_none():
            yield from _all_keys(value, f"{prefix}{key}.")


def compare(asked: DictConfig, shipped: DictConfig) -> None:
    """Hold every asked value against the shipped one: same keys, same types.

    Raises:
        ConfigError: a key is unknown or a value has the wrong type.
    """
    plain_asked, plain_shipped = (OmegaConf.to_container(config) for config in (asked, shipped))
    assert isinstance(plain_asked, dict) and isinstance(plain_shipped, dict)
    plain_asked.pop("hydra", None)
    for key, value, default in _differences(plain_asked, plain_shipped):
        if default is _ABSENT:
            raise ConfigError(unknown_key_message(key, shipped))
        allowed = declared_types().get(key) or [_type_name(default)]
        if not any(_fits(value, name) for name in allowed):
            raise ConfigError(
                f"{key} must be {' or '.join(allowed)}, got {written_value(value)}. Try {key}={written_value(default)}."
            )


_ABSENT = object()


def _differences(asked: dict[Any, Any], shipped: dict[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    for key, value in asked.items():
        default = shipped.get(key, _ABSENT)
        if isinstance(value, dict) and isinstance(default, dict):
            yield from _differences(value, default, f"{prefix}{key}.")
        elif default is _ABSENT and _takes_more(value, shipped):
            continue
        elif value is None and isinstance(default, dict):
            continue  # `callbacks.model_summary=null` switches an entry off
        elif value != default and not _is_interpolation(value) and not _is_interpolation(default):
            yield f"{prefix}{key}", value, default


def _takes_more(value: Any, parent: dict[Any, Any]) -> bool:
    """Say whether an added key is read: by the class that its parent names, or as an entry that names a class."""
    return "_target_" in parent or (isinstance(value, dict) and "_target_" in value)


def _is_interpolation(value: Any) -> bool:
    return isinstance(value, str) and "${" in value


def _type_name(value: Any) -> str:
    return "null" if value is None else type(value).__name__


def _fits(value: Any, name: str) -> bool:
    match name:
        case "null":
            return value is None
        case "bool":
            return isinstance(value, bool)
        case "int":
            return isinstance(value, int) and not isinstance(value, bool)
        case "float":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "str":
            # A name of digits only, such as run_id=7, is read as a number.
            return isinstance(value, str | int | float) and not isinstance(value, bool)
        case "list":
            return isinstance(value, list)
        case "dict":
            return isinstance(value, dict)
        case literal:
            return value == literal


def declared_types() -> dict[str, list[str]]:
    """Read the comments of the shipped files that declare types: `max_steps: null  # int | null: reason`."""
    found: dict[str, list[str]] = {}
    for file in sorted(CONFIG_DIR.rglob("*.yaml")):
        text = file.read_text(encoding="utf-8")
        header = re.match(r"# @package (\S+)", text)
        package = header[1] if header else file.parent.relative_to(CONFIG_DIR).as_posix().replace("/", ".")
        prefix = "" if package in ("_global_", ".", "hydra") else f"{package}."
        if package.startswith("hydra"):
            continue
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if isinstance(node, yaml.MappingNode):
            found.update(_comments(node, text.splitlines(), prefix))
    return found


def _comments(node: yaml.MappingNode, lines: list[str], prefix: str) -> Iterator[tuple[str, list[str]]]:
    for key, value in node.value:
        if isinstance(value, yaml.MappingNode):
            yield from _comments(value, lines, f"{prefix}{key.value}.")
            continue
        comment = re.search(r"#\s+([\w:.-]+(?: \| [\w.-]+)+|str|int|float|bool)(?::|$)", lines[value.start_mark.line])
        if comment:
            yield f"{prefix}{key.value}", comment[1].split(" | ")


def written_value(value: Any) -> str:
    """Write a value the way it is typed on the command line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "[" + ",".join(written_value(item) for item in value) + "]"
    return str(value)


def _refuse_existing_run(directory: Path) -> None:
    if (directory / "environment.json").exists() and not os.environ.get("LOCAL_RANK"):
        raise ConfigError(
            f"{directory} already holds a run, and two runs never share a directory. "
            "Leave out run_id= and hydra.run.dir=, or give names that are not taken."
        )
