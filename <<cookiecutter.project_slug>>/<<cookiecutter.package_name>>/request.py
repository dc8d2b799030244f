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

from .comparison import compare, unknown_key_message, written_value
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
