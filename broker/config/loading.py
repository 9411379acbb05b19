"""Loading of the settings from all their sources; reports every mistake in them at once.

Defaults < file < environment < flags. Types are not guessed: a TOML string is not a number, `true` is not 1; the text
of an environment variable is parsed as the type of its key. Errors are lines `key.path: what is wrong`, each with its
source.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any, get_args, get_origin

from pydantic import ValidationError

from broker.config.settings import RULES, TABLES, ConfigError, Settings, contradictions, leaves

__all__ = ["ENVIRONMENT_CONFIG", "ENVIRONMENT_PREFIX", "environment_name", "load"]

ENVIRONMENT_PREFIX = "MQTTD_"
ENVIRONMENT_CONFIG = "MQTTD_CONFIG"
"""Names the configuration file when --config does not."""

_OF_FLAGS = {"node_id": ("cluster", "node_id"), "mesh_listen": ("cluster", "listen")}
"""Paths of flags that are no key of the top level."""
_ENVIRONMENT_OTHERS = ("MQTTD_TEST", "MQTTD_PROFILE", "MQTTD_EXTENSIONS")  # for build and tests, not settings


def load(
    file: str | None,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> Settings:
    """Return the settings from a TOML file (None: none), environment variables and flags (by top-level key, or as in
    _OF_FLAGS).

    Raises ConfigError with every error found.
    """
    errors: list[str] = []
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}  # key path -> source of its value, if not the file
    if file is not None:
        values = _read_toml(file)
    for name, path, text in _from_environment(environment or {}, errors):
        if _put(values, path, _typed(path, text)):
            origins[".".join(path)] = name
    for key, value in (flags or {}).items():
        path, value = _of_cluster(value) if key == "cluster" else (_OF_FLAGS.get(key, (key,)), value)
        if _put(values, path, value):
            origins[".".join(path)] = "--" + key.replace("_", "-")
    settings = None
    try:
        settings = Settings.model_validate(values)
    except ValidationError as error:
        errors += [_line(detail, origins) for detail in error.errors(include_url=False)]
    if settings is not None:
        errors += contradictions(settings)
    if errors or settings is None:
        raise ConfigError(errors)
    return settings


def _of_cluster(addresses: list[str]) -> tuple[tuple[str, ...], Any]:
    """Return the key path that --cluster sets, and its value, by the scheme of its first address."""
    first = addresses[0] if addresses else ""
    if first.startswith("dns://"):
        return ("cluster", "dns"), ",".join(addresses).removeprefix("dns://")
    if first.startswith("peers://"):
        return ("cluster", "peers"), [each.removeprefix("peers://") for each in addresses]
    return ("cluster", "etcd"), addresses


def _read_toml(file: str) -> dict[str, Any]:
    try:
        with open(file, "rb") as opened:
            return tomllib.load(opened)
    except OSError as error:
        raise ConfigError([f"{file}: {error.strerror}"]) from None
    except UnicodeDecodeError:
        raise ConfigError([f"{file}: not UTF-8"]) from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError([f"{file}: {error}"]) from None


def _from_environment(environment: Mapping[str, str], errors: list[str]) -> Iterator[tuple[str, tuple[str, ...], str]]:
    """Yield (variable, key path, text) of every variable that names a setting."""
    known = {environment_name(path): path for path, _ in leaves()}
    for name, text in sorted(environment.items()):
        if not name.startswith(ENVIRONMENT_PREFIX) or name.startswith(_ENVIRONMENT_OTHERS):
            continue
        if name == ENVIRONMENT_CONFIG:
            continue
        if name in known:
            yield name, known[name], text
        else:
            errors.append(f"{name}: no such setting{_suggestion(name, list(known))} (environment)")


def environment_name(path: tuple[str, ...]) -> str:
    """Return the environment variable of the setting with this key path."""
    return ENVIRONMENT_PREFIX + "__".join(path).upper()


def _put(values: dict[str, Any], path: tuple[str, ...], value: object) -> bool:
    *tables, key = path
    for table in tables:
        inner = values.setdefault(table, {})
        if not isinstance(inner, dict):
            return False  # the file has another type there, which validation reports
        values = inner
    values[key] = value
    return True


def _typed(path: tuple[str, ...], text: str) -> object:
    """Parse a variable's text as the type of its key; if it is invalid, return the text, for validation to report."""
    annotation = dict(leaves())[path].annotation
    kinds = {annotation, *get_args(annotation)}
    if get_origin(annotation) is list:
        return [part.strip() for part in text.split(",")]
    if bool in kinds:
        return {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}.get(text.lower(), text)
    for kind in (int, float):
        if kind in kinds:
            try:
                return kind(text)
            except ValueError:
                return text
    return text


def _line(detail: Any, origins: Mapping[str, str]) -> str:
    """Return one line for one of pydantic's error details."""
    location = [str(part) for part in detail["loc"] if not isinstance(part, int)]
    path = ".".join(location)
    if detail["type"] == "extra_forbidden":
        known = [*TABLES, *RULES, *(f"{rule}.{name}" for rule, model in RULES.items() for name in model.model_fields)]
        known += [".".join(leaf) for leaf, _ in leaves()]
        return f"{path}: unknown key{_suggestion(path, known)}"
    message = detail["msg"][0].lower() + detail["msg"][1:]
    given = detail["input"]
    shown = f", not {given!r}" if isinstance(given, str | int | float | bool) else ""
    origin = f" (from {origins[path]})" if path in origins else ""
    return f"{path}: {message}{shown}{origin}"


def _suggestion(name: str, known: list[str]) -> str:
    """Return `; did you mean ...?` if a known name is close: the whole path, or its last part in another table."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.75)
    if not close:
        by_key = {path.rpartition(".")[2]: path for path in known}
        close = [
            by_key[key] for key in difflib.get_close_matches(name.rpartition(".")[2], list(by_key), n=1, cutoff=0.75)
        ]
    return f"; did you mean {close[0]}?" if close else ""
