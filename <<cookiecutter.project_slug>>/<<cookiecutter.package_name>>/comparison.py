"""Holds a composed configuration against the shipped one: keys, types, ranges, and the nearest name for a wrong one.

What a value may be stands in the comment behind it, `# int >= 1 | null: why`: types, bounds and words joined by ` | `.
What follows `list of` describes each element. Without such a comment the type of the shipped value is the type.
"""

import difflib
import math
import operator
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from .configuration import CONFIG_DIR, ConfigError

MISSING = "???"

NUMBER = r"-?\d[\d.e+-]*"
# The name of a type, or a word that stands for itself, between bounds: `0 <= float < 1`, `DD:HH:MM:SS`, `32-true`.
ALTERNATIVE = rf"(?:({NUMBER}) (<=?) )?([\w.-]+(?::\w+)*)(?: (<=?|>=?) ({NUMBER}))?"
DECLARATION = rf"(?:list of )?{ALTERNATIVE}(?: \| (?:list of )?{ALTERNATIVE})*"
COMPARISONS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}

# Several times as fast as SafeLoader, where PyYAML was built with it.
YAML_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class Declaration:
    """What a shipped file says of one of its values."""

    allowed: str
    reason: str
    shipped: str
    file: Path


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


def compare(
    asked: dict[str, Any],
    shipped: dict[str, Any],
    declared: dict[str, Declaration] | None = None,
    additions: bool = True,
) -> None:
    """Hold every asked value against the shipped one and against what its file declares: same keys, types, ranges.

    Args:
        declared: `declarations` of the files that were chosen. Where they are not known, every file's count.
        additions: allow keys that the class of their parent may read.

    Raises:
        ConfigError: a key is unknown, or a value is missing, of the wrong type or outside its range.
    """
    declared = declarations(CONFIG_DIR.rglob("*.yaml")) if declared is None else declared
    for key, value, default in _pairs(asked, shipped, additions):
        if default is _ABSENT:
            raise ConfigError(unknown_key_message(key, shipped))
        declaration = declared.get(key) or Declaration(_type_name(default), "", written_value(default), CONFIG_DIR)
        if value == MISSING or not fits(value, declaration.allowed):
            raise ConfigError(_misfit_message(key, value, default, declaration))


_ABSENT = object()


def _pairs(
    asked: dict[str, Any], shipped: dict[str, Any], additions: bool, prefix: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    for key, value in asked.items():
        default = shipped.get(key, _ABSENT)
        if prefix + key == "hydra" or (default is _ABSENT and additions and _is_read(value, shipped)):
            continue
        if isinstance(value, dict) and isinstance(default, dict):
            yield from _pairs(value, default, additions, f"{prefix}{key}.")
        elif value is None and isinstance(default, dict):
            continue  # `callbacks.model_summary=null` switches an entry off
        elif not _is_interpolation(value) and not _is_interpolation(default):
            yield f"{prefix}{key}", value, default


def _is_read(added: Any, parent: dict[str, Any]) -> bool:
    """Say whether an added key is read: by the class that its parent names, or as an entry that names a class."""
    return added != MISSING and ("_target_" in parent or (isinstance(added, dict) and "_target_" in added))


def _is_interpolation(value: Any) -> bool:
    return isinstance(value, str) and "${" in value


def _type_name(value: Any) -> str:
    return "null" if value is None else type(value).__name__


def _misfit_message(key: str, value: Any, default: Any, declaration: Declaration) -> str:
    found, allowed = written_value(value), declaration.allowed.replace(" | ", " or ")
    others = [text for text in (written_value(default), declaration.shipped) if text not in (found, MISSING)]
    if value == MISSING:
        reason = f": {declaration.reason}" if declaration.reason else ""
        return f"{key} has no value yet. It must be {allowed}{reason}. Try {key}={others[0] if others else 'VALUE'}."
    if isinstance(value, float) and not math.isfinite(value):
        found = f"{found}, which is not finite"
    advice = f"Try {key}={others[0]}." if others else f"Change it in {declaration.file}."
    return f"{key} must be {allowed}, got {found}. {advice}"


def fits(value: Any, allowed: str) -> bool:
    """Say whether a value is what a declaration such as `0 <= float < 1 | null` allows."""
    singles, _, elements = allowed.partition("list of ")
    if elements and isinstance(value, list):
        return all(fits(element, elements) for element in value)
    if isinstance(value, int | float) and not isinstance(value, bool) and not re.search(r"\b(int|float)\b", singles):
        # A name of digits only, such as run_id=7, is read as a number.
        value = str(value)
    return any(_fits(value, single) for single in singles.split(" | ") if single)


def _fits(value: Any, single: str) -> bool:
    found = re.fullmatch(ALTERNATIVE, single)
    if found is None:
        return False
    least, after, name, before, most = found.groups()
    if not _is_a(value, name):
        return False
    return (least is None or COMPARISONS[after](float(least), value)) and (
        most is None or COMPARISONS[before](value, float(most))
    )


def _is_a(value: Any, name: str) -> bool:
    match name:
        case "null":
            return value is None
        case "float":
            return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        case "bool" | "int" | "str" | "list" | "dict":
            return type(value).__name__ == name
        case "DD:HH:MM:SS":
            return isinstance(value, str) and re.fullmatch(r"\d+:\d\d:\d\d:\d\d", value) is not None
        case word:
            return written_value(value) == word


def declarations(files: Iterable[Path]) -> dict[str, Declaration]:
    """Read what shipped files declare of their values; where files disagree on a key, nothing is known of it."""
    found: dict[str, Declaration] = {}
    contradicted = set()
    for file in files:
        for key, declaration in _declared_in(file):
            if found.setdefault(key, declaration).allowed != declaration.allowed:
                contradicted.add(key)
    return {key: declaration for key, declaration in found.items() if key not in contradicted}


def _declared_in(file: Path) -> Iterator[tuple[str, Declaration]]:
    text = file.read_text(encoding="utf-8")
    header = re.match(r"# @package (\S+)", text)
    package = header[1] if header else file.parent.relative_to(CONFIG_DIR).as_posix().replace("/", ".")
    node = yaml.compose(text, Loader=YAML_LOADER)
    if isinstance(node, yaml.MappingNode):
        lines = text.splitlines()
        for key, value in _leaves(node, "" if package in ("_global_", ".") else f"{package}."):
            said = re.search(rf"\s#\s+(?P<allowed>{DECLARATION})(?:: (?P<reason>.*)|$)", lines[value.start_mark.line])
            # A word alone explains; only the name of a type declares.
            if said and (" " in said["allowed"] or said["allowed"] in ("int", "float", "str", "bool")):
                yield key, Declaration(said["allowed"], said["reason"] or "", _written_node(value), file)


def _leaves(node: yaml.MappingNode, prefix: str) -> Iterator[tuple[str, yaml.Node]]:
    for key, value in node.value:
        if isinstance(value, yaml.MappingNode):
            yield from _leaves(value, f"{prefix}{key.value}.")
        else:
            yield f"{prefix}{key.value}", value


def _written_node(node: yaml.Node) -> str:
    if isinstance(node, yaml.SequenceNode):
        return "[" + ",".join(_written_node(element) for element in node.value) + "]"
    return str(node.value)


def written_value(value: Any) -> str:
    """Write a value the way it is typed on the command line."""
    if isinstance(value, list):
        return "[" + ",".join(written_value(item) for item in value) + "]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)
