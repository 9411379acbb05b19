"""What a host tells the others about itself, as it is stored in the coordinator.

A record is JSON with a format number. A reader ignores fields that it does not know, so a later release may add some. A
record that its predecessor could not read gets another format number, which that refuses (`MalformedHostRecord`).
"""

from __future__ import annotations

import enum
import re
import struct
from dataclasses import dataclass, replace
from typing import Any, Final, Self

import orjson
from zmq.utils import z85

from pyx.core.peer import HOSTS_MAX

__all__ = ["NODE_ID", "RECORD_BYTES_MAX", "HostRecord", "HostState", "MalformedHostRecord"]

_FORMAT: Final = 1
NODE_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
"""Names of hosts: as in DNS, and no slash, because a key in the coordinator ends with one."""
RECORD_BYTES_MAX: Final = 4096
_KEY = re.compile(r"[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")
_INCARNATION_MAX: Final = (1 << 63) - 1
_WORKERS_MAX: Final = 1 << 16


class MalformedHostRecord(ValueError):
    """A record is not one of a member, or one of a later format."""


class HostState(enum.Enum):
    """`JOINING`: it has no complete routes yet. `DRAINING`: its clients move to other hosts."""

    JOINING = "joining"
    READY = "ready"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class HostRecord:
    """One host.

    number: of the installation (`broker.cluster.host_numbers`).
    incarnation: rises with every start of the host, over all its restarts.
    installation: 32 hexadecimal digits, made with the data directory: two hosts with the same node id differ in it.
    address: where its workers are reached by other hosts, "tcp://host:port".
    curve_key: its public key, 40 characters (Z85).
    link_versions: the oldest and the newest version of the links between hosts that it speaks.
    connections_max: how many clients it takes, 0: it does not say.
    keeps: its sessions outlive it, on disk.
    client_address: where clients reach it, as they are told; "": it does not say.
    question_versions: the oldest and the newest version of questions that it answers, on the port after those of its
    workers (`broker.cluster.host_channel`); (0, 0): it answers none, as hosts of earlier releases.
    """

    node: str
    number: int
    incarnation: int
    installation: str
    address: str
    curve_key: str
    workers: int
    state: HostState
    release: str
    link_versions: tuple[int, int]
    connections_max: int = 0
    keeps: bool = True
    client_address: str = ""
    question_versions: tuple[int, int] = (0, 0)

    def changed(self, state: HostState, incarnation: int = 0) -> Self:
        """Return the same host in another state, and with another incarnation unless that is 0."""
        return replace(self, state=state, incarnation=incarnation or self.incarnation)

    def encode(self) -> bytes:
        """Return the record, without the node id, which is its key."""
        return orjson.dumps(
            {
                "format": _FORMAT,
                "number": self.number,
                "incarnation": self.incarnation,
                "installation": self.installation,
                "address": self.address,
                "curve_key": self.curve_key,
                "workers": self.workers,
                "state": self.state.value,
                "release": self.release,
                "link_versions": self.link_versions,
                "connections_max": self.connections_max,
                "keeps": self.keeps,
                "client_address": self.client_address,
                "question_versions": self.question_versions,
            }
        )

    @classmethod
    def decode(cls, node: str, record: bytes) -> Self:
        """Return the member. Raises MalformedHostRecord."""
        try:
            return cls._read(node, record)
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
            raise MalformedHostRecord(f"the record of host {node!r} is malformed: {error}") from error

    @classmethod
    def _read(cls, node: str, record: bytes) -> Self:
        if not NODE_ID.fullmatch(node):
            raise ValueError("the name is no node id")
        if len(record) > RECORD_BYTES_MAX:
            raise ValueError(f"{len(record)} bytes; {RECORD_BYTES_MAX} are allowed")
        read = orjson.loads(record)
        if not isinstance(read, dict):
            raise TypeError("it is no object")
        if read["format"] != _FORMAT:
            raise ValueError(f"its format is {read['format']}, this release reads {_FORMAT}")
        oldest, newest = (_number(each, 1, 255) for each in read["link_versions"])
        answered = tuple(_number(each, 0, 255) for each in read.get("question_versions", (0, 0)))
        if len(answered) != 2:
            raise ValueError(f"{len(answered)} versions of questions")
        return cls(
            node,
            _number(read["number"], 1, HOSTS_MAX - 1),
            _number(read["incarnation"], 1, _INCARNATION_MAX),
            _text(read["installation"], re.compile("[0-9a-f]{32}")),
            _address(read["address"]),
            _curve_key(read["curve_key"]),
            _number(read["workers"], 1, _WORKERS_MAX),
            HostState(read["state"]),
            _text(read["release"], re.compile(r"\S{1,64}")),
            (oldest, newest),
            _number(read.get("connections_max", 0), 0, _INCARNATION_MAX),
            bool(read.get("keeps", True)),
            _text(read.get("client_address", ""), re.compile("[!-~]{0,255}")),
            (answered[0], answered[1]),
        )


def _address(value: Any) -> str:
    address = _text(value, re.compile(r"tcp://([A-Za-z0-9._-]{1,255}|\[[0-9a-fA-F:.]{2,45}\]):[0-9]{1,5}"))
    _number(int(address.rpartition(":")[2]), 1, 65535)
    return address


def _curve_key(value: Any) -> str:
    """Return a key of 32 bytes in Z85: five characters are a number below 2^32."""
    key = _text(value, _KEY)
    try:
        z85.decode(key)
    except struct.error as error:
        raise ValueError(f"{key!r} is no key: {error}") from error
    return key


def _number(value: Any, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{value!r} is no number from {least} to {most}")
    return value


def _text(value: Any, form: re.Pattern[str]) -> str:
    if not isinstance(value, str) or not form.fullmatch(value):
        raise ValueError(f"{value!r} has not the form {form.pattern}")
    return value
