"""Keeps secrets out of what a run writes down. Used by request.py, training.py and run_directory.py."""

import os
import re
from collections.abc import Mapping
from typing import Any

from .configuration import ConfigError

MASK = "***"
_NAME = r"(?:(?:api|access|private|secret)_?key|token|secret|password|passwd)"
_IS_SECRET = re.compile(rf"(?:^|[^a-z]){_NAME}$", re.IGNORECASE)
# `token=abc123`, `"api_key": "abc123"`: a literal of some length with a digit in it, and no call or name of code.
_WRITTEN = re.compile(rf"""({_NAME}["']?\s*[:=]\s*["']?)(?=[^\s"',}}()]*\d)[^\s"',}}()]{{8,}}+(?!\()""", re.IGNORECASE)


def refuse_secrets(config: Mapping[str, Any], prefix: str = "") -> None:
    """
    Args:
        config: what was asked, with its interpolations as they were written.

    Raises:
        ConfigError: a secret stands in it as text.
    """
    for key, value in config.items():
        if isinstance(value, Mapping):
            refuse_secrets(value, f"{prefix}{key}.")
        elif _IS_SECRET.search(str(key)) and isinstance(value, str) and value and "${" not in value:
            raise ConfigError(
                f"{prefix}{key} is a secret, and what is typed or stands in a config file is written into the run "
                f"directory. Put it in an environment variable. Try '{prefix}{key}=${{oc.env:{str(key).upper()}}}'."
            )


def masked(node: Any) -> Any:
    """Give a configuration whose interpolations are computed without the secrets in it."""
    return _masked(node, _secrets())


def _masked(node: Any, secrets: list[str]) -> Any:
    if isinstance(node, dict):
        return {key: _masked_entry(str(key), value, secrets) for key, value in node.items()}
    if isinstance(node, list):
        return [_masked(value, secrets) for value in node]
    return _without(secrets, node) if isinstance(node, str) else node


def _masked_entry(key: str, value: Any, secrets: list[str]) -> Any:
    if isinstance(value, str) and _IS_SECRET.search(key):
        return MASK
    # A class is no secret, even where somebody's password is a part of its name.
    return value if key == "_target_" else _masked(value, secrets)


def _secrets() -> list[str]:
    """Give the values of the environment's secrets, those that contain others first."""
    found = [value for name, value in os.environ.items() if _IS_SECRET.search(name) and len(value) >= 8]
    return sorted(found, key=len, reverse=True)


def _without(secrets: list[str], text: str) -> str:
    for secret in secrets:
        text = text.replace(secret, MASK)
    return text


def mask(text: str) -> str:
    """Hide what looks like a secret, and the values of the environment's secrets, wherever they stand in a text."""
    return _WRITTEN.sub(rf"\1{MASK}", _without(_secrets(), text))
