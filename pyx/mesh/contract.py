"""What a link and those around it exchange: its limits, its counters, and batches that were not delivered.

`zmq_mesh.contract` describes the events of a link, and the log that a store may keep for it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

Buffer = bytes | bytearray | memoryview
# Any object with the buffer protocol (a pyx message body, bytes): collections.abc.Buffer needs Python 3.12.
Payload = Any

# `position` of a refusal of every entry in the batch.
WHOLE_BATCH: Final = -1


class EnvelopeError(Exception):
    """The bytes are not a valid message or entry."""


class Watcher(Protocol):
    """The descriptors that are watched: `pyx.io.reactor.Reactor` is one."""

    def watch_in_round(self, fd: int, callback: Callable[[], object]) -> None:
        """Call `callback()` while `fd` is readable."""

    def watch_output(self, fd: int, on: bool) -> None:
        """Call it also while `fd` is writable, or no longer."""

    def unwatch(self, fd: int) -> None:
        """Stop watching `fd`."""


class Undelivered(NamedTuple):
    """The sequenced part of a batch that a peer did not take, or not completely. ticket: -1 when its publishers were
    answered by a former incarnation of this worker. sent: it may have arrived.
    """

    ticket: int
    part: Buffer
    payloads: Sequence[Payload]
    entries_count: int
    sent: bool


@dataclass(frozen=True, slots=True)
class LinkLimits:
    """The bounds of one link."""

    peer_outbox_bytes_max: int = 8 * 1024 * 1024
    handoff_log_bytes_max: int = 64 * 1024 * 1024
    link_silence_seconds_max: float = 1.5
    peer_stall_seconds_max: float = 2.0
