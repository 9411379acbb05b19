from typing import Any, ClassVar, final

class Packet:
    fields: ClassVar[tuple[str, ...]]
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]

@final
class Will(Packet):
    topic: bytes
    payload: bytes
    qos: int
    retain: bool
    delay_interval: int
    expiry_interval: int | None
    properties: bytes
    def __init__(
        self,
        topic: bytes,
        payload: bytes,
        qos: int = 0,
        retain: bool = False,
        delay_interval: int = 0,
        expiry_interval: int | None = None,
        properties: bytes = b"",
    ) -> None: ...

@final
class Connect(Packet):
    version: int
    client_id: str
    clean_start: bool
    keep_alive: int
    username: str | None
    password: bytes | None
    will: Will | None
    properties: dict[str, Any]
    def __init__(
        self,
        version: int,
        client_id: str,
        clean_start: bool = True,
        keep_alive: int = 0,
        username: str | None = None,
        password: bytes | None = None,
        will: Will | None = None,
        properties: dict[str, Any] | None = None,
    ) -> None: ...

@final
class Subscription(Packet):
    filter: bytes
    options: int
    def __init__(self, filter: bytes, options: int = 0) -> None: ...
    @property
    def qos(self) -> int: ...
    @property
    def no_local(self) -> bool: ...
    @property
    def retain_as_published(self) -> bool: ...
    @property
    def retain_handling(self) -> int: ...

@final
class Subscribe(Packet):
    packet_id: int
    filters: list[Subscription]
    identifier: int
    properties: dict[str, Any]
    def __init__(
        self, packet_id: int, filters: list[Subscription], identifier: int = 0, properties: dict[str, Any] | None = None
    ) -> None: ...

@final
class Unsubscribe(Packet):
    packet_id: int
    filters: list[bytes]
    properties: dict[str, Any]
    def __init__(self, packet_id: int, filters: list[bytes], properties: dict[str, Any] | None = None) -> None: ...

@final
class Disconnect(Packet):
    reason_code: int
    properties: dict[str, Any]
    def __init__(self, reason_code: int = 0, properties: dict[str, Any] | None = None) -> None: ...

@final
class Auth(Packet):
    reason_code: int
    properties: dict[str, Any]
    def __init__(self, reason_code: int = 0, properties: dict[str, Any] | None = None) -> None: ...

@final
class Publish(Packet):
    topic: bytes
    payload: bytes
    qos: int
    retain: bool
    dup: bool
    packet_id: int
    properties: dict[str, Any]
    def __init__(
        self,
        topic: bytes,
        payload: bytes = b"",
        qos: int = 0,
        retain: bool = False,
        dup: bool = False,
        packet_id: int = 0,
        properties: dict[str, Any] | None = None,
    ) -> None: ...

@final
class Ack(Packet):
    packet_type: int
    packet_id: int
    reason_code: int
    properties: dict[str, Any]
    def __init__(
        self, packet_type: int, packet_id: int, reason_code: int = 0, properties: dict[str, Any] | None = None
    ) -> None: ...

@final
class Connack(Packet):
    session_present: bool
    reason_code: int
    properties: dict[str, Any]
    def __init__(
        self, session_present: bool = False, reason_code: int = 0, properties: dict[str, Any] | None = None
    ) -> None: ...

@final
class Suback(Packet):
    packet_id: int
    codes: list[int]
    properties: dict[str, Any]
    def __init__(self, packet_id: int, codes: list[int], properties: dict[str, Any] | None = None) -> None: ...

@final
class Unsuback(Packet):
    packet_id: int
    codes: list[int]
    properties: dict[str, Any]
    def __init__(self, packet_id: int, codes: list[int], properties: dict[str, Any] | None = None) -> None: ...

@final
class Pingreq(Packet): ...

@final
class Pingresp(Packet): ...
