"""A client connection without its socket: its inbox of undecoded bytes, its outbox, and its waiting acks."""

from typing import final

from pyx.delivery.session import Session

@final
class Connection:
    """The protocol state of a connection. The reactor owns its socket; in tests and the simulation there is none."""

    session: Session | None
    fd: int
    listener: int
    version: int
    state: int
    paused: bool
    busy: int
    authenticating: bool
    problem_information: bool
    packet_bytes_max: int
    topic_alias_max: int
    topic_alias_out_max: int
    keep_alive_ms: int
    opened: int
    bytes_in: int
    bytes_out: int
    messages_in: int
    messages_out: int
    drops: int
    def __init__(self) -> None: ...
    @property
    def address(self) -> str: ...
    @property
    def local_address(self) -> str | None: ...
    @property
    def pending(self) -> int: ...
    @property
    def pending_qos0(self) -> int: ...
    @property
    def acks_pending(self) -> int: ...
    def unread(self) -> bytes: ...
