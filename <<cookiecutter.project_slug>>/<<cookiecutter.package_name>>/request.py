"""Checks a command line against the shipped configuration before Hydra starts and torch is loaded.

Every Hydra door calls `start`. A wrong option, key, type, value or combination ends in one message, exit code 2 and
nothing on disk.
"""

import difflib
import functools
import itertools
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, IntervalSweep, Override
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from .comparison import MISSING, YAML_LOADER, compare, declarations, unknown_key_message, written_value
from .configuration import (
    CONFIG_DIR,
    RANKS,
    RUN_DIR_VARIABLE,
    ConfigError,
    check_launcher,
    find_checkpoint,
    is_child_process,
    plain,
    refuse,
    shown,
    whole_number,
)
from .contradictions import check_together
from .masking import refuse_secrets
from .resuming import go_on

# Groups whose files change others. What they write is held against the files that they change.
PRESETS = ("debug", "experiment")
# Keys whose values are taken as they are typed: a comma or a bracket in a path means nothing to Hydra.
PATHS = ("checkpoint", "output", "hydra.run.dir", "model.init_from", "resume")
# A run keeps these, and may be resumed or evaluated from another folder than the one in which they were typed.
DATA_PATHS = ("data.root", "data.index", "data.cache_dir")
HELP = "`python train.py --help` lists what can be set."


def start(main: Callable[[], Any], config_name: str) -> None:
    """Check the command line, then run the door under Hydra."""
    # Behind an override, argparse would not know it.
    sys.argv[1:] = sorted(sys.argv[1:], key=lambda argument: argument not in ("-m", "--multirun"))
    sys.argv[1:] = [quote(absolute(argument)) for argument in switch_off(sys.argv[1:])]
    arguments = get_args_parser().parse_args()
    only_shows = arguments.help or arguments.hydra_help or arguments.cfg or arguments.info or arguments.shell_completion
    try:
        if not only_shows:
            check_launcher()
        if is_child_process():
            _continue_in_the_run_directory()
        elif not (only_shows or arguments.config_path or arguments.config_dir):
            if config_name != "train":
                sys.argv[1:] = add_to_checkpoint(config_name, sys.argv[1:])
                arguments = get_args_parser().parse_args()
            elif any(override.startswith("resume=") for override in arguments.overrides):
                sys.argv[1:] = _go_on(arguments.overrides, arguments.multirun)
                arguments = get_args_parser().parse_args()
            for overrides in single_requests(arguments.overrides, arguments.multirun):
                check(arguments.config_name or config_name, overrides)
    except ConfigError as error:
        refuse(error)
    except KeyboardInterrupt:
        sys.exit(130)
    if not only_shows and any(whole_number(rank) > 0 for rank in RANKS):
        # One process speaks for all; the others are heard when something is wrong.
        sys.argv.append("hydra.job_logging.root.level=WARNING")
    main()


def absolute(argument: str) -> str:
    """Make a path of the data absolute, and quote it: commas in it are not the values of a grid."""
    key, _, value = argument.partition("=")
    if key not in DATA_PATHS or value in ("", "null") or value[0] in ("'", '"') or "${" in value:
        return argument
    path = Path(value).expanduser()
    return argument if "," in value and not path.exists() else _in_quotes(key, str(path.absolute()))


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
        if key not in PATHS or argument in ("resume=null", "model.init_from=null"):
            parse([argument])
            return argument
    except ConfigError:
        pass
    return _in_quotes(key, value)


def _in_quotes(key: str, value: str) -> str:
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


@functools.cache
def _optional_groups() -> set[str]:
    page = yaml.safe_load((CONFIG_DIR / "train.yaml").read_text(encoding="utf-8"))
    names = (name for entry in page["defaults"] if isinstance(entry, dict) for name in entry)
    return {name.removeprefix("optional ") for name in names if name.startswith("optional ")}


def _go_on(overrides: list[str], multirun: bool) -> list[str]:
    if multirun:
        raise ConfigError("resume= goes on with one run, and -m starts several. Leave out -m.")
    return [quote(text) for text in go_on(overrides, lambda given: _compose("train", [quote(text) for text in given]))]


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
    """Give the command lines to check: one, or under `--multirun` one for each job of the grid."""
    parsed = parse(overrides)
    choices = [
        [f"{override.get_key_element()}={value}" for value in _swept(override)]
        if multirun and override.is_sweep_override()
        else [written]
        for override, written in zip(parsed, overrides, strict=True)
    ]
    yield from map(list, itertools.product(*choices))


def _swept(override: Override) -> list[str]:
    swept: Any = override.value()
    if isinstance(swept, IntervalSweep):
        raise ConfigError(
            f"{override.input_line} cannot be counted. A grid takes single values, range() and, for a group, glob(). "
            f"Try {override.key_or_group}={swept.start:g},{swept.end:g}."
        )
    if isinstance(swept, Glob):
        return swept.filter([file.stem for file in sorted((CONFIG_DIR / override.key_or_group).glob("*.yaml"))])
    return list(override.sweep_string_iterator())


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
        ConfigError: an option, key, type, value or combination is wrong.
    """
    asked = _compose(config_name, overrides)
    if config_name == "train":
        _check_training(asked, overrides)
    else:
        _check_of_checkpoint(asked, config_name)


def _check_of_checkpoint(asked: DictConfig, config_name: str) -> None:
    """Check a door's own keys, and what it changes of a checkpoint as far as that is known without the checkpoint."""
    own = plain(_shipped(config_name, "checkpoint=logs/latest"), resolve=False)
    given = plain(asked, resolve=False)
    if given["checkpoint"] == MISSING:
        raise ConfigError("No checkpoint was given. A run directory or a file is allowed. Try checkpoint=logs/latest.")
    declared = declarations(CONFIG_DIR.rglob("*.yaml"))
    compare({key: value for key, value in given.items() if key in own and key != "trainer"}, own, declared)
    changes = {key: value for key, value in given.items() if key not in own or key == "trainer"}
    compare(changes, changes, declared)
    find_checkpoint(asked.checkpoint)
    _check_writable(asked.hydra.run.dir, "output" if "output" in own else "hydra.run.dir")


def _check_training(asked: DictConfig, overrides: list[str]) -> None:
    choices = plain(asked.hydra.runtime.choices)
    for group, option in choices.items():
        # Hydra passes over an unknown option of an optional group without a word.
        options = [file.stem for file in (CONFIG_DIR / group).glob("*.yaml")]
        wanted = option is not None and (options or any(given.startswith(f"{group}=") for given in overrides))
        if wanted and option not in options and not group.startswith("hydra/"):
            raise ConfigError(_choice_message(group, option, options))
    refuse_secrets(plain(asked, resolve=False))
    shipped = _shipped("train", *(f"{group}={choices[group]}" for group in choices if _is_shipped(group, choices)))
    declared = declarations(_chosen_files(choices))
    compare(plain(asked, resolve=False), plain(shipped, resolve=False), declared)
    left_out = [group for group in shipped.hydra.runtime.choices if group not in choices]
    left_out += [str(key) for key in shipped if key not in asked]
    for name in left_out:
        if name not in _optional_groups():
            raise ConfigError(f"A run cannot do without {name}. Leave out ~{name}.")
    # Once more with what interpolations come to. Before, a wrong value is named by the key under which it was typed.
    HydraConfig.instance().set_config(asked)
    computed = _computed(asked)
    compare(computed, _computed(shipped), declared)
    for key in ("name", "run_id"):
        # Both name a folder below logs/.
        if not re.fullmatch(r"\w[\w. -]*", str(computed[key])):
            raise ConfigError(
                f"{key} must consist of letters, digits, '-', '_' and '.', got {computed[key]}. Try {key}=trial-1."
            )
    check_together(computed)
    _check_run_directory(asked.hydra.run.dir, again=computed["resume"] is not None)


@functools.cache
def _shipped(config_name: str, *overrides: str) -> DictConfig:
    return _compose(config_name, list(overrides))


def _chosen_files(choices: dict[str, Any]) -> Iterator[Path]:
    yield CONFIG_DIR / "train.yaml"
    for group, option in choices.items():
        file = CONFIG_DIR / group.partition("@")[0] / f"{option}.yaml"
        # An optional group's folder may have been deleted.
        if option is not None and not group.startswith("hydra/") and file.exists():
            yield from _with_parents(file)


def _with_parents(file: Path) -> Iterator[Path]:
    """Give a file and those of its group that its defaults list names."""
    yield file
    page = yaml.load(file.read_text(encoding="utf-8"), Loader=YAML_LOADER) or {}
    for name in page.get("defaults", []):
        if isinstance(name, str) and name != "_self_":
            yield from _with_parents(file.parent / f"{name.partition('@')[0]}.yaml")


def _computed(node: Any) -> Any:
    """Give a configuration as plain values with its interpolations computed.

    Raises:
        ConfigError: an interpolation names something that is not there.
    """
    if isinstance(node, DictConfig):
        return {str(key): _computed(_value(node, key)) for key in node if key != "hydra"}
    if isinstance(node, ListConfig):
        return [_computed(_value(node, position)) for position in range(len(node))]
    return node


def _value(parent: DictConfig | ListConfig, key: Any) -> Any:
    def written() -> Any:
        return OmegaConf.to_container(parent)[key]  # type: ignore[index]

    if OmegaConf.is_missing(parent, key):
        return MISSING
    try:
        value = parent[key]
    except OmegaConfBaseException as error:
        if isinstance(error.__cause__, ConfigError):
            raise error.__cause__ from error
        raise ConfigError(
            f"{error.full_key}={written()} cannot be computed: {str(error).splitlines()[0].rstrip('.')}. "
            "Try python train.py --cfg job to see every key."
        ) from error
    # A whole mapping that stands elsewhere, `callbacks.export: ${export}`, is checked there.
    return written() if OmegaConf.is_config(value) and OmegaConf.is_interpolation(parent, key) else value


def _is_shipped(group: str, choices: dict[str, Any]) -> bool:
    known = "@" not in group and (CONFIG_DIR / group).is_dir()
    return known and choices[group] is not None and not group.startswith("hydra/") and group not in PRESETS


def _check_run_directory(run_dir: str, again: bool) -> None:
    directory = _check_writable(run_dir, "hydra.run.dir")
    # Of several ranks that a launcher starts, the first may already have begun.
    launched = "LOCAL_RANK" in os.environ or "SLURM_PROCID" in os.environ
    if (directory / "environment.json").exists() and not launched and not again:
        raise ConfigError(
            f"{directory} already holds a run, and two runs never share a directory. Leave out run_id= and "
            f"hydra.run.dir=, or give names that are not taken. To go on with it: resume={shown(directory)}."
        )


def _check_writable(folder: str, key: str) -> Path:
    directory = Path(folder).absolute()
    existing = next(parent for parent in (directory, *directory.parents) if parent.exists())
    if not folder or not existing.is_dir() or not os.access(existing, os.W_OK):
        raise ConfigError(
            f"Nothing can be written to {directory}: {existing} is no folder that you may write to. "
            f"Try {key}=DIR with another folder."
        )
    return directory


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
        shipped = plain(_shipped(config_name, *map(str, groups)), resolve=False) if key else {}
        message = unknown_key_message(key, shipped) if key else f"{' '.join(str(error).split()).rstrip(' .')}. {HELP}"
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
