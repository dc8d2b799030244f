"""Checks a command line against the shipped configuration before Hydra starts and torch is loaded.

Every Hydra door calls `start`. A wrong option, key or type ends in one message, exit code 2 and nothing on disk.
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

from .configuration import CONFIG_DIR, RUN_DIR_VARIABLE, ConfigError, find_checkpoint, is_child_process, plain, refuse

# Groups whose files change others. What they write is held against the files that they change.
PRESETS = ("debug", "experiment")
# Keys whose values are taken as they are typed: a comma or a bracket in a path means nothing to Hydra.
PATHS = ("checkpoint", "output", "hydra.run.dir")
HELP = "`python train.py --help` lists what can be set."


def start(main: Callable[[], Any], config_name: str) -> None:
    """Check the command line, then run the door under Hydra."""
    sys.argv[1:] = [quote(argument) for argument in switch_off(sys.argv[1:])]
    arguments = get_args_parser().parse_args()
    only_shows = arguments.help or arguments.hydra_help or arguments.cfg or arguments.info or arguments.shell_completion
    try:
        if is_child_process():
            _continue_in_the_run_directory()
        elif not (only_shows or arguments.config_path or arguments.config_dir):
            if config_name != "train":
                sys.argv[1:] = add_to_checkpoint(config_name, sys.argv[1:])
                arguments = get_args_parser().parse_args()
            for overrides in single_requests(arguments.overrides, arguments.multirun):
                check(arguments.config_name or config_name, overrides)
    except ConfigError as error:
        refuse(error)
    if not only_shows and any(int(os.environ.get(rank, "0")) > 0 for rank in ("RANK", "LOCAL_RANK", "SLURM_PROCID")):
        # One process speaks for all; the others are heard when something is wrong.
        sys.argv.append("hydra.job_logging.root.level=WARNING")
    main()


def quote(argument: str) -> str:
    """Quote a path, or text that Hydra could not read otherwise: `name=für`, `checkpoint=/data/a,b=c.ckpt`."""
    key, _, value = argument.partition("=")
    if (
        not re.fullmatch(r"[+~]*[A-Za-z_][\w./@-]*", key)
        or "=" not in argument
        or value[:1] in ("'", '"')
        or "${" in value
    ):
        return argument
    try:
        if key not in PATHS:
            parse([argument])
            return argument
    except ConfigError:
        pass
    mark = '"' if "'" in value else "'"
    # Hydra reads a backslash as one, unless it stands before the closing mark's like.
    text = re.sub(rf"(\\*)({mark}|\Z)", lambda found: found[1] * 2 + (f"\\{mark}" if found[2] else ""), value)
    return f"{key}={mark}{text}{mark}"


def switch_off(arguments: list[str]) -> list[str]:
    """Write `export=null` the way Hydra takes it for a group; a group whose folder was deleted is off already."""
    written = []
    for argument in arguments:
        group = argument.removesuffix("=null")
        if group == argument or group not in _optional_groups():
            written.append(argument)
        elif (CONFIG_DIR / group).is_dir():
            written.append(f"~{group}")
    return written


def _optional_groups() -> set[str]:
    page = yaml.safe_load((CONFIG_DIR / "train.yaml").read_text(encoding="utf-8"))
    names = (name for entry in page["defaults"] if isinstance(entry, dict) for name in entry)
    return {name.removeprefix("optional ") for name in names if name.startswith("optional ")}


def _continue_in_the_run_directory() -> None:
    # Lightning starts the other ranks with this command line and a quoted path that some characters would break.
    own = ("hydra.run.dir=", "hydra.job.name=")
    kept = [argument for argument in sys.argv[1:] if not argument.startswith(own)]
    sys.argv[1:] = [*kept, f"hydra.run.dir=${{oc.env:{RUN_DIR_VARIABLE}}}"]


def add_to_checkpoint(config_name: str, arguments: list[str]) -> list[str]:
    """Mark overrides of keys that a door's own page lacks as additions; the flow lays them over the checkpoint's."""
    page = yaml.safe_load((CONFIG_DIR / f"{config_name}.yaml").read_text(encoding="utf-8"))
    own = {*page, "strategy"} - {"trainer"}
    marked = []
    for argument in arguments:
        key = re.match(r"[A-Za-z_][\w/.@-]*(?==)", argument)
        if key is None or key[0].split(".")[0] in own:
            marked.append(argument)
        else:
            marked.append(f"{'+' if (CONFIG_DIR / key[0]).is_dir() else '++'}{argument}")
    return marked


def single_requests(overrides: list[str], multirun: bool) -> Iterator[list[str]]:
    """Give the command lines to check: one, or under `--multirun` as many as bring up every swept value once."""
    parsed = parse(overrides)
    choices = [
        [f"{override.get_key_element()}={value}" for value in override.sweep_string_iterator()]
        if multirun and override.is_sweep_override()
        else [written]
        for override, written in zip(parsed, overrides, strict=True)
    ]
    for number in range(max((len(values) for values in choices), default=1)):
        yield [values[min(number, len(values) - 1)] for values in choices]


def parse(overrides: list[str]) -> list[Override]:
    try:
        parsed = OverridesParser.create().parse_overrides(overrides)
        if all(override.key_or_group for override in parsed):
            return parsed
        raise HydraException("There is a value without a key.")
    except HydraException as error:
        raise ConfigError(
            f"The command line could not be read: {str(error).splitlines()[0].rstrip('.')}. Overrides look like "
            "key=value. Try python train.py --help."
        ) from error


def check(config_name: str, overrides: list[str]) -> None:
    """Compose what was asked and compare it with what is shipped.

    Raises:
        ConfigError: an option, key, type or value is wrong.
    """
    asked = _compose(config_name, overrides)
    if config_name != "train":
        own = plain(_compose(config_name, ["checkpoint=logs/latest"]), resolve=False)
        compare(
            {key: value for key, value in plain(asked, resolve=False).items() if key in own and key != "trainer"}, own
        )
        if OmegaConf.is_missing(asked, "checkpoint"):
            raise ConfigError(
                "No checkpoint was given. A run directory or a file is allowed. Try checkpoint=logs/latest."
            )
        find_checkpoint(asked.checkpoint)
        return
    choices = plain(asked.hydra.runtime.choices)
    for group, option in choices.items():
        # Hydra passes over an unknown option of an optional group without a word.
        options = [file.stem for file in (CONFIG_DIR / group).glob("*.yaml")]
        wanted = option is not None and (options or any(given.startswith(f"{group}=") for given in overrides))
        if wanted and option not in options and not group.startswith("hydra/"):
            raise ConfigError(_choice_message(group, option, options))
    shipped = _compose(config_name, [f"{group}={choices[group]}" for group in choices if _is_shipped(group, choices)])
    compare(plain(asked, resolve=False), plain(shipped, resolve=False))
    left_out = [str(key) for key in shipped if key not in asked and key not in _optional_groups()]
    if left_out:
        raise ConfigError(f"A run cannot do without {left_out[0]}. Leave out ~{left_out[0]}.")
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
    _check_run_directory(asked.hydra.run.dir)


def _is_shipped(group: str, choices: dict[str, Any]) -> bool:
    known = "@" not in group and (CONFIG_DIR / group).is_dir()
    return known and choices[group] is not None and not group.startswith("hydra/") and group not in PRESETS


def _check_run_directory(run_dir: str) -> None:
    directory = Path(run_dir).absolute()
    existing = next(folder for folder in (directory, *directory.parents) if folder.exists())
    if not run_dir or not existing.is_dir() or not os.access(existing, os.W_OK):
        raise ConfigError(
            f"A run cannot be written to {directory}: {existing} is no folder that you may write to. "
            "Try hydra.run.dir=DIR with another folder."
        )
    # Of several ranks that a launcher starts, the first may already have begun.
    launched = "LOCAL_RANK" in os.environ or "SLURM_PROCID" in os.environ
    if (directory / "environment.json").exists() and not launched:
        raise ConfigError(
            f"{directory} already holds a run, and two runs never share a directory. "
            "Leave out run_id= and hydra.run.dir=, or give names that are not taken."
        )


def _compose(config_name: str, overrides: list[str]) -> DictConfig:
    try:
        with initialize_config_dir(config_dir=str(CONFIG_DIR), version_base="1.3"):
            return compose(config_name, overrides, return_hydra_config=True)
    except MissingConfigException as error:
        group, _, option = (error.missing_cfg_file or "").rpartition("/")
        message = _choice_message(group, option, list(error.options)) if error.options else f"{error}. {HELP}"
        raise ConfigError(message) from error
    except (ConfigCompositionException, OmegaConfBaseException) as error:
        key = getattr(error.__cause__, "full_key", None) or getattr(error, "full_key", None)
        groups = [override.input_line for override in parse(overrides) if (CONFIG_DIR / override.key_or_group).is_dir()]
        shipped = plain(_compose(config_name, [str(group) for group in groups]), resolve=False) if key else {}
        message = unknown_key_message(key, shipped) if key else f"{error}. {HELP}"
        raise ConfigError(message) from error
    except ValueError as error:
        # Hydra's word for a number or null where a group's option was expected.
        for override in parse(overrides):
            options = [file.stem for file in (CONFIG_DIR / override.key_or_group).glob("*.yaml")]
            if options and not override.is_delete() and not isinstance(override.value(), str | list):
                message = _choice_message(override.key_or_group, written_value(override.value()), options)
                raise ConfigError(message) from error
        raise
    except HydraException as error:
        raise ConfigError(f"{error}. {HELP}") from error


def _choice_message(group: str, option: str, options: list[str]) -> str:
    # `precision=32` means 32-true: a beginning counts as near.
    near = [name for name in options if name.startswith(option)] or difflib.get_close_matches(option, options, 1, 0.0)
    allowed = sorted(options) + ["null"] * (group in _optional_groups())
    return f"{group}={option} does not exist. Allowed: {', '.join(allowed)}. Try {group}={(near or allowed)[0]}."


def unknown_key_message(key: str, shipped: dict[str, Any]) -> str:
    """Name the nearest existing key: first among its neighbours, then anywhere by its last part."""
    known = dict(_flat({name: value for name, value in shipped.items() if name != "hydra"}))
    parent, _, last = key.rpartition(".")
    neighbours = {name.rpartition(".")[2]: name for name in known if name.rpartition(".")[0] == parent}
    anywhere = {name.rpartition(".")[2]: name for name in known}
    near = [
        names[close] for names in (neighbours, anywhere) for close in difflib.get_close_matches(last, list(names), 1)
    ]
    if not near:
        allowed = ", ".join(neighbours or (name for name in known if "." not in name))
        return f"{key} does not exist. Allowed here: {allowed}. Try python train.py --cfg job to see every key."
    value = known[near[0]]
    if isinstance(value, dict):
        options = sorted(file.stem for file in (CONFIG_DIR / near[0]).glob("*.yaml"))
        value = options[0] if options else None
    return f"{key} does not exist. The nearest name is {near[0]}. Try {near[0]}={written_value(value)}."


def _flat(node: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in node.items():
        yield f"{prefix}{key}", value
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")


def compare(asked: dict[str, Any], shipped: dict[str, Any], additions: bool = True) -> None:
    """Hold every asked value against the shipped one: same keys, same types.

    Args:
        additions: allow keys that the class of their parent may read.

    Raises:
        ConfigError: a key is unknown or a value has the wrong type.
    """
    for key, value, default in _differences(asked, shipped, additions):
        if default is _ABSENT:
            raise ConfigError(unknown_key_message(key, shipped))
        allowed = declared_types().get(key) or [_type_name(default)]
        if not any(_fits(value, name) for name in allowed):
            raise ConfigError(
                f"{key} must be {' or '.join(allowed)}, got {written_value(value)}. Try {key}={written_value(default)}."
            )


_ABSENT = object()


def _differences(
    asked: dict[str, Any], shipped: dict[str, Any], additions: bool, prefix: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    for key, value in asked.items():
        default = shipped.get(key, _ABSENT)
        if prefix + key == "hydra" or (default is _ABSENT and additions and _is_read(value, shipped)):
            continue
        if isinstance(value, dict) and isinstance(default, dict):
            yield from _differences(value, default, additions, f"{prefix}{key}.")
        elif value is None and isinstance(default, dict):
            continue  # `callbacks.model_summary=null` switches an entry off
        elif value != default and not _is_interpolation(value) and not _is_interpolation(default):
            yield f"{prefix}{key}", value, default


def _is_read(added: Any, parent: dict[str, Any]) -> bool:
    """Say whether an added key is read: by the class that its parent names, or as an entry that names a class."""
    return "_target_" in parent or (isinstance(added, dict) and "_target_" in added)


def _is_interpolation(value: Any) -> bool:
    return isinstance(value, str) and "${" in value


def _type_name(value: Any) -> str:
    return "null" if value is None else type(value).__name__


def _fits(value: Any, name: str) -> bool:
    match name:
        case "null":
            return value is None
        case "float":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "str":
            # A name of digits only, such as run_id=7, is read as a number.
            return isinstance(value, str | int | float) and not isinstance(value, bool)
        case "bool" | "int" | "list" | "dict":
            return type(value).__name__ == name
        case literal:
            return bool(value == literal)


def declared_types() -> dict[str, list[str]]:
    """Read the types that comments of the shipped files declare: `max_time: null  # str | dict | null: reason`."""
    found: dict[str, list[str]] = {}
    for file in CONFIG_DIR.rglob("*.yaml"):
        text = file.read_text(encoding="utf-8")
        header = re.match(r"# @package (\S+)", text)
        package = header[1] if header else file.parent.relative_to(CONFIG_DIR).as_posix().replace("/", ".")
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if isinstance(node, yaml.MappingNode):
            found.update(_comments(node, text.splitlines(), "" if package in ("_global_", ".") else f"{package}."))
    return found


def _comments(node: yaml.MappingNode, lines: list[str], prefix: str) -> Iterator[tuple[str, list[str]]]:
    for key, value in node.value:
        if isinstance(value, yaml.MappingNode):
            yield from _comments(value, lines, f"{prefix}{key.value}.")
            continue
        comment = re.search(r"#\s+([\w.-]+(?: \| [\w.-]+)+|str|int|float|bool)(?::|$)", lines[value.start_mark.line])
        if comment:
            yield f"{prefix}{key.value}", comment[1].split(" | ")


def written_value(value: Any) -> str:
    """Write a value the way it is typed on the command line."""
    if isinstance(value, list):
        return "[" + ",".join(written_value(item) for item in value) + "]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)
