"""Holds a composed configuration against the shipped one: keys, types, and the nearest name for a wrong one."""

import difflib
import re
from collections.abc import Iterator
from typing import Any

import yaml

from .configuration import CONFIG_DIR, ConfigError


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
