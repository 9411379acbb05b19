"""Options shared by all load tools, as flags and in the environment: --client-prefix is MQTTD_LOAD_CLIENT_PREFIX.

One table, for argparse (flood, compare, plan: `Parser` and `add_to`) and for locust's parser (`add_to_locust`), whose
own -u, --users, --host, --version, -t and -s have other meanings: short flags and aliases are left out there.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from math import gcd
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

ENVIRONMENT: Final = "MQTTD_LOAD_"
PAYLOAD_BYTES_MAX: Final = 268_435_455 - 65_535 - 64
"""Rest of the largest Remaining Length after the longest topic and the properties that we send."""
TURN_MAX: Final = 10_000
"""Payloads of a mix until it repeats."""


class Option(NamedTuple):
    """A row of the table."""

    name: str
    """The flag, without the dashes; in the environment and in the namespace with _ for -."""
    help: str
    default: Any = None
    type: Callable[[str], Any] = str
    metavar: str | None = None
    choices: tuple[int, ...] | None = None
    aliases: tuple[str, ...] = ()
    """Flags that locust's parser does not get."""
    is_secret: bool = False

    @property
    def dest(self) -> str:
        """Its attribute in the namespace."""
        return self.name.replace("-", "_")

    @property
    def variable(self) -> str:
        """Its name in the environment."""
        return ENVIRONMENT + self.dest.upper()


def at_least(least: float, kind: type[int] | type[float] = int) -> Callable[[str], float]:
    """Return a `type` for argparse: a number of at least `least`."""

    def number(text: str) -> float:
        value = kind(text)
        if not least <= value < float("inf"):
            raise argparse.ArgumentTypeError(f"{text}: a number from {least:g} on")
        return value

    number.__name__ = "number"
    return number


OPTIONS: Final = (
    Option("host", "the broker: mqtt://, mqtts://, ws:// or wss://HOST:PORT[/PATH]", "mqtt://127.0.0.1:1883",
           metavar="URL"),
    Option("mqtt-version", "protocol: 3 (3.1), 4 (3.1.1) or 5 (5.0)", 4, int, choices=(3, 4, 5),
           aliases=("--version",)),
    Option("user", "user name", metavar="NAME"),
    Option("password", "better in the environment or a file: other users can see arguments", is_secret=True),
    Option("password-file", "file with the password in its first line", type=Path, metavar="FILE"),
    Option("cafile", "certificates (PEM) that mqtts:// and wss:// trust, instead of the system's", type=Path,
           metavar="FILE"),
    Option("cert", "client certificate (PEM)", type=Path, metavar="FILE"),
    Option("key", "its private key (PEM), unless it is in the same file", type=Path, metavar="FILE"),
    Option("client-prefix", "prefix of client ids", "flood-", metavar="TEXT"),
    Option("qos", "QoS of publishes and subscriptions", 0, int, choices=(0, 1, 2), aliases=("-q",)),
    Option("rate", "messages per second of all publishers", type=at_least(0, float), metavar="N"),
    Option("payload", "bytes of a payload, or a file to send; several, separated by commas, are sent in turn, each "
           "with an optional WEIGHT: 80:64,20:4096", "64", metavar="WHAT", aliases=("-s", "--size")),
    Option("topic", "%%i: the publisher's number, %%c: its client id", "t/%i", metavar="TEMPLATE", aliases=("-t",)),
    Option("session-expiry", "seconds for which sessions outlive connections (3.1, 3.1.1: any)",
           type=at_least(0), metavar="S"),
)  # fmt: skip


_SECRET: Final = frozenset(f"--{each.name}" for each in OPTIONS if each.is_secret)
OF_CONNECTIONS: Final = ("host", "user", "password", "password-file", "cafile", "cert", "key")
"""Options for reaching a broker; the others are about publishing."""


class Parser(argparse.ArgumentParser):
    """Reports errors in one line, `tool: error`, and exits with status 2; options cannot be abbreviated."""

    def __init__(self, **more: Any) -> None:
        super().__init__(allow_abbrev=False, **more)

    def error(self, message: str) -> NoReturn:
        """Report an error and exit."""
        self.exit(2, f"{self.prog.split()[-1].rpartition('.')[2]}: {message}\n")


def add_to(
    parser: argparse.ArgumentParser, *, without: Container[str] = (), defaults: Mapping[str, Any] | None = None
) -> None:
    """Add all options of the table, except those named. defaults: by name, where a tool has its own."""
    for each, settings in _chosen(without, defaults or {}):
        parser.add_argument(*each.aliases, f"--{each.name}", **settings)


def add_to_locust(
    parser: Any, *, without: Container[str] = ("host",), defaults: Mapping[str, Any] | None = None
) -> None:
    """Add them to locust's own parser, in `events.init_command_line_parser`; it reads the environment itself."""
    for each, settings in _chosen(without, defaults or {}):
        settings["type"] = str if each.type is Path else each.type  # a master sends all but Path objects to its workers
        parser.add_argument(f"--{each.name}", env_var=each.variable, is_secret=each.is_secret, **settings)


def typed(options: argparse.Namespace) -> None:
    """Convert options of the table to the types that they have with argparse: locust's master and its web page pass
    text, empty for unset ones. Files stay text. ValueError: a text is invalid.
    """
    for each in OPTIONS:
        value = getattr(options, each.dest, None)
        if value == "":
            setattr(options, each.dest, None)
        elif isinstance(value, str) and each.type not in (str, Path):
            try:
                setattr(options, each.dest, each.type(value))
            except argparse.ArgumentTypeError as error:
                raise ValueError(f"--{each.name} {error}") from None


def _chosen(without: Container[str], defaults: Mapping[str, Any]) -> Iterator[tuple[Option, dict[str, Any]]]:
    for each in OPTIONS:
        if each.name not in without:
            default = defaults.get(each.name, each.default)
            said = "" if default is None else f" (default: {str(default).replace('%', '%%')})"
            yield each, {
                "dest": each.dest, "type": each.type, "choices": each.choices, "default": default,
                "metavar": each.metavar, "help": each.help + said,
            }  # fmt: skip


def arguments_of(options: argparse.Namespace, *, without: Container[str] = ()) -> list[str]:
    """Return the given options of the table as flags for another tool. None: was not given."""
    found = []
    for each in OPTIONS:
        value = getattr(options, each.dest, None)
        if value is not None and each.name not in without:
            found += [f"--{each.name}", str(value)]
    return found


def shown(arguments: Sequence[str]) -> list[str]:
    """Return arguments without secrets, for display."""
    found: list[str] = []
    for each in arguments:
        flag = each.partition("=")[0]
        if found and found[-1] in _SECRET:
            found.append("...")
        else:
            found.append(f"{flag}=..." if "=" in each and flag in _SECRET else each)
    return found


def from_environment(parser: argparse.ArgumentParser, environment: Mapping[str, str]) -> None:
    """Use values of the environment as defaults, for every option of the parser: also those of a tool's own."""
    for action in parser._actions:
        names = [each for each in action.option_strings if each.startswith("--")]
        variable = ENVIRONMENT + names[-1][2:].replace("-", "_").upper() if names else ""
        value = environment.get(variable)
        if value is None:
            continue
        if action.nargs == 0:
            action.default = value not in ("", "0", "no")
            continue
        try:
            found = parser._get_value(action, value)
            parser._check_value(action, found)
            action.default = [found] if isinstance(action.default, list) else found
        except argparse.ArgumentError as error:
            parser.error(f"{variable}: {error.message}")


def password_of(options: argparse.Namespace) -> str | None:
    """Return the password, from either option. ValueError: both are given, or its file cannot be read."""
    if options.password_file is None:
        password: str | None = options.password
        return password
    if options.password is not None:
        raise ValueError("--password and --password-file say the same: one of them")
    try:
        lines = options.password_file.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"--password-file: {_reason(error, options.password_file)}") from None
    if not lines:
        raise ValueError(f"--password-file: {options.password_file} is empty")
    return str(lines[0])


def payloads(text: str) -> tuple[int | bytes, ...]:
    """Parse --payload into a sequence: numbers of bytes, or contents of files. With weights each occurs that often,
    evenly spread: of 80:64,20:4096 every fifth is 4096. ValueError: one of them is neither, or too large.
    """
    whats: list[int | bytes] = []
    weights: list[int] = []
    for part in text.split(","):
        weighted = re.fullmatch(r"(\d+):(.+)", part.strip())
        weight, what = (int(weighted[1]), weighted[2]) if weighted else (1, part.strip())
        if weight < 1:
            raise ValueError(f"--payload {text}: a weight is 1 at least")
        whats.append(_payload(what, text))
        weights.append(weight)
    common = gcd(*weights)
    weights = [each // common for each in weights]
    if sum(weights) > TURN_MAX:
        raise ValueError(f"--payload {text}: the weights make a turn of more than {TURN_MAX:,} payloads")
    # smooth weighted round robin: the one that is furthest behind its share is next
    turn: list[int | bytes] = []
    credit = [0] * len(whats)
    for _ in range(sum(weights)):
        credit = [have + weight for have, weight in zip(credit, weights, strict=True)]
        which = credit.index(max(credit))
        credit[which] -= sum(weights)
        turn.append(whats[which])
    return tuple(turn)


def _payload(what: str, text: str) -> int | bytes:
    found: int | bytes
    if what.isdecimal():
        found = int(what)
    else:
        path = Path(what.removeprefix("@"))
        try:
            found = path.read_bytes()
        except OSError as error:
            raise ValueError(
                f"--payload {text}: neither a number of bytes nor a file: {_reason(error, path)}"
            ) from None
    if (found if isinstance(found, int) else len(found)) > PAYLOAD_BYTES_MAX:
        raise ValueError(f"--payload {text}: more than {PAYLOAD_BYTES_MAX:,} bytes")
    return found


def _reason(error: OSError | UnicodeDecodeError, path: Path) -> str:
    return f"{path}: {error.strerror if isinstance(error, OSError) else 'is no text'}"
