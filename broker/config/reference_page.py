"""Generator of the tables in docs/reference/configuration.md, from the models of the settings.

python -m broker.config.reference_page --markdown docs/reference/configuration.md

A test fails if the page is out of date.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from broker.config.archive import ARCHIVE_RULES_MAX
from broker.config.bridges import CONNECTIONS_MAX, TOPICS_MAX, Bridge, BridgeTopic
from broker.config.limits import Limits
from broker.config.listeners import LISTENERS_MAX
from broker.config.loading import environment_name
from broker.config.settings import QUEUE_RULES_MAX, RULES, TABLES, TOPIC_RULES_MAX, leaves, needs_restart

__all__ = ["markdown", "with_tables"]

_KIB = 1024
_MIB = 1024 * _KIB
_DAY = 86400
_BEGIN = "<!-- generated: python -m broker.config.reference_page --markdown docs/reference/configuration.md -->"
_END = "<!-- end of what is generated -->"


def markdown() -> str:
    """Return the tables of all settings."""
    parts = []
    for table in ((), *((name,) for name in TABLES if name != "limits")):
        parts.append(f"### {TABLES[table[0]].__name__ if table else 'Settings'}\n")
        if table:
            parts.append(f"In the table `[{table[0]}]` of the file. {_prose(TABLES[table[0]])}\n")
        parts.append("| key | default | environment | reload | meaning |\n|---|---|---|---|---|")
        for path, field in leaves():
            if path[:-1] == table:
                reload = "no" if needs_restart(field) else "yes"
                default = _shown(field.get_default(call_default_factory=True))
                name = environment_name(path)
                parts.append(f"| `{path[-1]}` | {default} | `{name}` | {reload} | {_meaning(field)} |")
        parts.append("")
    parts += _limits_markdown()
    parts += _rules_markdown("Listeners", "listener", f"at most {LISTENERS_MAX - 1}; changes need a restart")
    parts += _rules_markdown("Strategies of share groups", "shared", "a reload applies changes")
    parts += _rules_markdown("Rules for full queues", "queue", f"at most {QUEUE_RULES_MAX}; a reload applies changes")
    parts += _rules_markdown("Durability of topics", "topic", f"at most {TOPIC_RULES_MAX}; changes need a restart")
    parts += _rules_markdown("Archive", "archive", f"at most {ARCHIVE_RULES_MAX}; changes need a restart")
    parts += _bridges_markdown()
    return "\n".join(parts)


def _bridges_markdown() -> Iterator[str]:
    yield "### Bridges\n"
    which = f"with at most {CONNECTIONS_MAX} connections together; changes need a restart"
    yield f"Tables `[bridges.NAME]` of the file, {which}. {_prose(Bridge)}\n"
    yield from _keys_markdown(Bridge)
    yield f"Tables `[[bridges.NAME.topic]]`; at most {TOPICS_MAX}. {_prose(BridgeTopic)}\n"
    yield from _keys_markdown(BridgeTopic)


def _limits_markdown() -> Iterator[str]:
    yield "### Limits\n"
    yield (
        f"In the table `[limits]` of the file. {_prose(Limits)} A reload changes all but those marked (restart). "
        "*Counter*: the number in the shared rows that says how often the bound was reached, or the log event where "
        "only the log has it.\n"
    )
    yield "| key | default | unit | counter | what it bounds | at the bound |\n|---|---|---|---|---|---|"
    for name, field in Limits.model_fields.items():
        extra = field.json_schema_extra
        assert isinstance(extra, dict)
        unit = str(extra["unit"])
        kind, _, counted = str(extra["counter"]).rpartition(" ")
        counter = f"{kind} `{counted}`".strip() if counted else "-"
        restart = " (restart)" if needs_restart(field) else ""
        shown = _shown(field.default, unit)
        yield f"| `{name}` | {shown} | {unit} | {counter} | {field.description}.{restart} | {extra['beyond']} |"
    yield ""


def _rules_markdown(title: str, table: str, which: str) -> Iterator[str]:
    model = RULES[table]
    yield f"### {title}\n"
    yield f"Tables `[[{table}]]` of the file; {which}. {_prose(model)}\n"
    yield from _keys_markdown(model)


def _keys_markdown(model: type[BaseModel]) -> Iterator[str]:
    yield "| key | default | meaning |\n|---|---|---|"
    for name, field in model.model_fields.items():
        default = "required" if field.is_required() else _shown(field.get_default(call_default_factory=True))
        yield f"| `{name}` | {default} | {_meaning(field)} |"
    yield ""


def _prose(model: type[BaseModel]) -> str:
    # on one line: CPython 3.13 and newer take the indentation out of docstrings, older ones do not
    return " ".join((model.__doc__ or "").split())


def _meaning(field: FieldInfo) -> str:
    choices = [repr(choice) for choice in get_args(field.annotation) if isinstance(choice, str)]
    listed = f" One of {', '.join(choices)}.".replace("'", "`") if len(choices) > 1 else ""
    return f"{field.description}{listed}"


def _shown(value: object, unit: str = "") -> str:
    if value is None:
        return "not set"
    if value in ("", []):
        return "empty"
    if isinstance(value, bool):
        return f"`{value}`".lower()
    if isinstance(value, int):
        for name, size in (("MiB", _MIB), ("KiB", _KIB)):
            if unit == "bytes" and value >= size and value % size == 0:
                return f"`{value}` ({value // size} {name})"
        if unit == "seconds" and value >= _DAY and value % _DAY == 0:
            return f"`{value}` ({value // _DAY} days)"
        return f"`{value}`"
    if isinstance(value, float):
        return f"`{value:g}`"
    return f"`{value}`".replace("'", '"')


def with_tables(document: str) -> str:
    """Return a document with its generated part replaced. Raises ValueError when its markers are missing."""
    before, begin, rest = document.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise ValueError(f"the document has no lines {_BEGIN!r} and {_END!r}")
    return f"{before}{begin}\n\n{markdown()}\n{end}{after}"


def _main(arguments: list[str]) -> int:
    match arguments:
        case ["--markdown"]:
            print(markdown())
        case ["--markdown", file]:
            path = Path(file)
            path.write_text(with_tables(path.read_text()))
        case _:
            print("usage: python -m broker.config.reference_page --markdown [FILE]", file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(_main(sys.argv[1:]))
